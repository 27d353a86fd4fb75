"""Quantized models: MXFP4 is restored to plain weights, and everything else is refused before a run."""

import json

import pytest
import torch
from safetensors import safe_open
from typer.testing import CliRunner

from elastane.cli.main import app
from elastane.common.errors import BadField
from elastane.integrations.recipes.model_source import find_quantization, read_pretrained_config
from elastane.integrations.recipes.models import load_model
from elastane.run.worker.finished.configs import read_configs
from tests.lazy_modules import LazyModule

from .quantized_model import EXPERTS, write_quantized_model
from .rehearsed_runs import (
    make_small_recipe,
    play_recipe,
    release_all_steps,
)

peft = LazyModule("peft")
transformers = LazyModule("transformers")
TOKENS = torch.arange(20, 40)[None]


@pytest.fixture(scope="module")
def folders(tokenizer, tmp_path_factory):
    """Return the folders of one model with plain weights and in MXFP4."""
    root = tmp_path_factory.mktemp("models")
    write_quantized_model(tokenizer, root / "plain", root / "quantized")
    return root / "plain", root / "quantized"


@torch.no_grad()
def compute_logits(model):
    torch.set_num_threads(1)
    return model.eval()(TOKENS).logits


def assert_equal_models(model, expected):
    for (name, parameter), (expected_name, wanted) in zip(
        model.named_parameters(), expected.named_parameters(), strict=True
    ):
        assert name == expected_name
        assert parameter.dtype == wanted.dtype, name
        assert torch.equal(parameter, wanted), name
    assert torch.equal(compute_logits(model), compute_logits(expected))


def test_the_folder_of_the_test_holds_blocks_and_scales_of_four_bits(folders):
    with safe_open(folders[1] / "model.safetensors", framework="pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    prefix = "model.layers.0.mlp.experts"
    assert shapes[f"{prefix}.gate_up_proj_blocks"] == (4, 64, 2, 16)
    assert shapes[f"{prefix}.gate_up_proj_scales"] == (4, 64, 2)
    assert shapes[f"{prefix}.down_proj_blocks"] == (4, 64, 1, 16)
    assert not any(name.endswith(EXPERTS) for name in shapes)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_mxfp4_becomes_plain_weights_that_can_be_trained(folders, dtype):
    plain, quantized = (load_model(str(folder), dtype) for folder in folders)
    assert_equal_models(quantized, plain)
    assert all(parameter.requires_grad for parameter in quantized.parameters())
    config = json.loads(read_configs(quantized)["config.json"])
    assert config == json.loads(read_configs(plain)["config.json"])
    assert "quantization_config" not in config


def test_mxfp4_becomes_plain_weights_where_the_kernels_of_transformers_are_installed(folders, monkeypatch):
    module = "transformers.quantizers.quantizer_mxfp4"
    monkeypatch.setattr(f"{module}.get_current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(f"{module}.is_triton_available", lambda *_: True)
    monkeypatch.setattr(f"{module}.is_kernels_available", lambda *_: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: (9, 0))
    plain, quantized = (load_model(str(folder), "bfloat16") for folder in folders)
    assert_equal_models(quantized, plain)


@pytest.mark.processes
def test_a_run_that_begins_with_mxfp4_ends_with_plain_weights(stage, folders, tmp_path):
    plain, quantized = (
        play_recipe(
            stage,
            make_small_recipe(
                "gpt-oss-tiny", f"model.from={folder}", "model.dtype=bfloat16", "training.steps=4"
            ),
            tmp_path / folder.name,
            release_all_steps,
        )
        for folder in folders
    )
    assert quantized.losses == plain.losses
    assert quantized.digests == plain.digests
    root = quantized.run.run_dir.root
    assert "quantization_config" not in json.loads((root / "config.json").read_text())
    with safe_open(root / "model.safetensors", framework="pt") as file:
        assert not any(name.endswith(("_blocks", "_scales")) for name in file.keys())  # noqa: SIM118
    logits = torch.load(root / "logits-0.pt")
    assert torch.equal(compute_logits(transformers.AutoModelForCausalLM.from_pretrained(root)), logits)
    # The experts have been trained.
    before = load_model(str(folders[1]), "bfloat16")
    after = transformers.AutoModelForCausalLM.from_pretrained(root)
    for name in EXPERTS:
        path = f"model.layers.0.mlp.experts.{name}"
        assert not torch.equal(before.get_parameter(path), after.get_parameter(path))


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_an_adapter_on_mxfp4_loads_and_leaves_the_experts_as_they_are(stage, folders, tmp_path):
    changes = (f"model.from={folders[1]}", "batch.context=160", "evaluation.every=0", "training.steps=4")
    recipe = make_small_recipe("gpt-oss-tiny-lora", *changes)
    ended = play_recipe(stage, recipe, tmp_path, release_all_steps)
    root = ended.run.run_dir.root
    with safe_open(root / "adapter_model.safetensors", framework="pt") as file:
        trained = set(file.keys())
    assert trained
    # As docs/recipes.md says: an adapter is on linear layers, and the experts are none.
    assert all(".self_attn." in name for name in trained)
    loaded = peft.AutoPeftModelForCausalLM.from_pretrained(root, dtype=torch.float32)
    assert torch.equal(compute_logits(loaded), torch.load(root / "logits-0.pt"))


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({}, ""),
        ({"quantization_config": None}, ""),
        ({"text_config": {"hidden_size": 8}}, ""),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ({"text_config": {"quantization_config": {"quant_method": "fp8"}}}, "fp8"),
        ({"quantization_config": {"load_in_4bit": True}}, "an unknown method"),
        ({"quantization_config": "awq"}, "an unknown method"),
    ],
)
def test_the_quantization_is_read_from_the_configuration(config, method):
    assert find_quantization(config) == method


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "fp8", "new\n\x1b[31m"])
def test_other_quantized_weights_are_refused(tmp_path, method):
    (tmp_path / "model.safetensors").touch()
    config = {"model_type": "llama", "quantization_config": {"quant_method": method}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadField, match=f"has quantized weights: {method[:3]}") as refused:
        read_pretrained_config(tmp_path)
    assert "\x1b" not in str(refused.value)
    assert "plain weights" in refused.value.means + refused.value.do
    with pytest.raises(BadField, match="has quantized weights"):
        load_model(str(tmp_path), "bfloat16")


@pytest.mark.parametrize("command", ["run", "submit", "eject"])
def test_other_quantized_weights_are_refused_before_anything_is_written(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path / "home"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").touch()
    (tmp_path / "model" / "config.json").write_text('{"quantization_config": {"quant_method": "awq"}}')
    before = sorted(tmp_path.rglob("*"))
    refused = CliRunner().invoke(app, ["recipe", command, "llama-tiny", "--set", "model.from=./model"])
    assert refused.exit_code == 2
    assert "quantized weights: awq" in " ".join(refused.stderr.split())
    assert sorted(tmp_path.rglob("*")) == before
