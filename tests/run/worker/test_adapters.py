"""`peft` and `transformers` load an exported adapter that computes the same as the trained one."""

import copy
import json

import msgspec
import pytest
import torch
from torch import nn

from elastane.common.errors import BadInput
from elastane.run.checkpoints.catalog import Catalog
from elastane.run.checkpoints.storage.local import LocalStorage
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunRecord
from elastane.run.worker.checkpoints.checkpoint_export import read_trained_model
from elastane.run.worker.checkpoints.reader import CheckpointReader
from elastane.run.worker.export import convert, export_model, read_finished_run
from elastane.run.worker.finished.adapters import map_base_names
from elastane.run.worker.finished.model_writer import write_finished
from elastane.run.worker.finished.readback import ReadbackFailed
from tests.lazy_modules import LazyModule

from .lessons import FEATURES, Lesson, build_spec, make_samples, train_elastic
from .test_foreign_readers import make_texts, tiny_gpt2, tiny_llama
from .test_kept_state import write_checkpoint

peft = LazyModule("peft")
transformers = LazyModule("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # peft warns about its own choices


@pytest.fixture(autouse=True, scope="session")
def libraries():
    """Import the libraries before `frozen_heap`, so that no run looks through their objects."""
    pytest.importorskip("peft")
    pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def only_trained(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)


def loss(model, batch):
    return model(input_ids=batch[0], labels=batch[0]).loss, None


def lora(**wishes):
    return peft.LoraConfig(**({"r": 2, "target_modules": ["c_attn"], "task_type": "CAUSAL_LM"} | wishes))


class Adapted:
    """A run that trained an adapter, and its export.

    Args:
        folder: an empty one.
        adapt: makes the model with the adapter from the base model.
        base: makes the base model.
        named: the base model was loaded from a directory, which the adapter then names.
    """

    def __init__(self, folder, adapt, *, base=tiny_gpt2, named=True, after=lambda model: None):
        self.named = folder / "base"
        torch.manual_seed(3)
        base().save_pretrained(self.named)
        self.model_type = transformers.AutoModelForCausalLM

        def build():
            if named:
                return adapt(self.load_base())
            model = base()
            model.load_state_dict(self.load_base().state_dict())
            return adapt(model)

        lesson = Lesson(
            build, optimizer=only_trained, loss=loss, data=make_texts(), steps=3, global_batch=4, microbatch=2
        )
        self.state = train_elastic(lesson).run._trainer.state
        self.model = self.state.model.eval()
        after(self.model)
        self.files, self.out = RunDir(folder / "run"), folder / "out"
        self.files.root.mkdir()
        write_finished(self.state, self.files, build_spec())
        self.files.run.write_bytes(msgspec.json.encode(RunRecord(spec=build_spec(), created="")))

    def load_base(self):
        return self.model_type.from_pretrained(self.named)

    def export(self):
        return export_model(read_finished_run(self.files, optimizer=False), "hf", self.out)


def compute_logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=make_texts().tensors[0]).logits


def assert_computes_the_same(adapted, folder):
    trained = compute_logits(adapted.model)
    assert not torch.equal(trained, compute_logits(adapted.load_base())), "the adapter has learned nothing"
    assert torch.equal(compute_logits(peft.PeftModel.from_pretrained(adapted.load_base(), folder)), trained)
    if not json.loads((folder / "adapter_config.json").read_text()).get("use_dora"):
        # transformers 5.23 does not find the magnitudes of DoRA, also not those that peft has saved.
        assert torch.equal(compute_logits(adapted.model_type.from_pretrained(folder)), trained)


def add_adapter(model, config):
    model.add_adapter(config)
    return model


def inject(model, config):
    return peft.inject_adapter_in_model(config, model)


HOW = {
    "lora": lambda base: peft.get_peft_model(base, lora()),
    "with a name of its own": lambda base: peft.get_peft_model(base, lora(), adapter_name="mine"),
    "without a task": lambda base: peft.get_peft_model(base, lora(task_type=None)),
    "dora": lambda base: peft.get_peft_model(base, lora(use_dora=True)),
    "rslora with ranks and biases": lambda base: peft.get_peft_model(
        base, lora(use_rslora=True, rank_pattern={"h.0.attn.c_attn": 3}, bias="lora_only")
    ),
    "embeddings": lambda base: peft.get_peft_model(base, lora(target_modules=["wte", "c_attn"])),
    "layers trained as a whole": lambda base: peft.get_peft_model(base, lora(modules_to_save=["ln_f"])),
    "tokens": lambda base: peft.get_peft_model(base, lora(trainable_token_indices=[1, 2])),
    "ia3": lambda base: peft.get_peft_model(
        base, peft.IA3Config(target_modules=["c_attn"], feedforward_modules=[], task_type="CAUSAL_LM")
    ),
    "transformers' add_adapter": lambda base: add_adapter(base, lora()),
    "injected": lambda base: inject(base, lora()),
    "compiled": lambda base: torch.compile(peft.get_peft_model(base, lora()), backend="eager"),
}


@pytest.mark.parametrize("adapt", HOW.values(), ids=HOW)
def test_an_exported_adapter_computes_the_same_as_the_trained_one(tmp_path, adapt):
    adapted = Adapted(tmp_path, adapt)
    done = adapted.export()
    assert done.files.keys() == {"adapter_config.json", "adapter_model.safetensors"}
    assert any("peft finds every tensor" in sentence for sentence in done.checked)
    assert_computes_the_same(adapted, adapted.out)


def test_an_adapter_of_another_architecture_is_exported(tmp_path):
    adapted = Adapted(
        tmp_path, lambda base: peft.get_peft_model(base, lora(target_modules="all-linear")), base=tiny_llama
    )
    adapted.export()
    assert_computes_the_same(adapted, adapted.out)


def test_a_trained_prompt_is_exported(tmp_path):
    config = peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")
    adapted = Adapted(tmp_path, lambda base: peft.get_peft_model(base, config), base=tiny_llama)
    adapted.export()
    read = peft.PeftModel.from_pretrained(adapted.load_base(), adapted.out)
    assert torch.equal(compute_logits(read), compute_logits(adapted.model))


def test_the_run_directory_itself_loads_as_an_adapter(tmp_path):
    adapted = Adapted(tmp_path, HOW["lora"])
    assert not adapted.files.model_files.config.exists()
    assert_computes_the_same(adapted, adapted.files.root)


@pytest.mark.parametrize("how", ["lora", "transformers' add_adapter", "layers trained as a whole", "tokens"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_base_model_without_a_name_is_exported_with_its_adapter(tmp_path, how, tied):
    adapted = Adapted(tmp_path, HOW[how], named=False, base=lambda: tiny_gpt2(tied=tied))
    assert {"config.json", "model.safetensors", "adapter_config.json"} <= adapted.export().files.keys()
    assert_computes_the_same(adapted, adapted.out)


def test_a_checkpoint_gives_the_same_adapter(tmp_path):
    adapted = Adapted(tmp_path, HOW["compiled"])
    adapted.export()
    catalog = Catalog(LocalStorage(tmp_path / "checkpoints"))
    manifest = write_checkpoint(catalog, adapted.state)
    with CheckpointReader(catalog.storage, manifest) as reader:
        export_model(
            read_trained_model(reader, manifest, max_shard_bytes=10**9, optimizer=False),
            "hf",
            tmp_path / "kept",
        )
    for path in adapted.out.iterdir():
        assert (tmp_path / "kept" / path.name).read_bytes() == path.read_bytes()


def test_equal_adapters_give_equal_bytes(tmp_path):
    config = lora(target_modules={"c_attn", "c_proj", "c_fc"})
    text = (
        Adapted(tmp_path, lambda base: peft.get_peft_model(base, config)).files.root / "adapter_config.json"
    )
    assert json.loads(text.read_text())["target_modules"] == ["c_attn", "c_fc", "c_proj"]


def test_an_adapter_is_converted(tmp_path):
    adapted = Adapted(tmp_path, HOW["lora"])
    trained = convert(read_finished_run(adapted.files, optimizer=False), torch.bfloat16)
    export_model(trained, "hf", adapted.out)
    read = peft.PeftModel.from_pretrained(adapted.load_base(), adapted.out)
    assert torch.allclose(compute_logits(read), compute_logits(adapted.model), atol=1e-2)


def test_a_merged_adapter_is_part_of_the_model(tmp_path):
    adapted = Adapted(tmp_path, HOW["lora"], after=lambda model: model.merge_and_unload())
    assert "adapter_config.json" not in adapted.export().files
    read = adapted.model_type.from_pretrained(adapted.out)
    assert torch.equal(compute_logits(read), compute_logits(adapted.model))


def unfrozen(base):
    model = peft.get_peft_model(base, lora())
    model.base_model.model.transformer.ln_f.weight.requires_grad_(True)
    return model


def two_adapters(base):
    model = peft.get_peft_model(base, lora())
    model.add_adapter("second", lora())
    return model


@pytest.mark.parametrize(
    ("adapt", "why"), [(unfrozen, r"ln_f\.weight was trained too"), (two_adapters, "2 adapters")]
)
def test_a_model_that_the_files_of_an_adapter_cannot_hold_is_refused(tmp_path, adapt, why):
    adapted = Adapted(tmp_path, adapt)
    with pytest.raises(BadInput, match=why) as refused:
        adapted.export()
    assert "--format torch" in refused.value.do
    assert not adapted.out.exists()
    assert not adapted.files.model_files.config.exists(), "from_pretrained would load random weights"
    export_model(read_finished_run(adapted.files, optimizer=False), "torch", adapted.out)
    read = torch.load(adapted.out / "model.pt", weights_only=True)
    assert read.keys() == adapted.model.state_dict().keys()


def test_an_adapter_of_a_plain_module_loads_onto_it(tmp_path):
    torch.manual_seed(3)
    base = nn.Sequential(nn.Linear(FEATURES, 8), nn.Linear(8, 4))
    config = peft.LoraConfig(r=2, target_modules=["0"])
    lesson = Lesson(lambda: peft.get_peft_model(copy.deepcopy(base), config), optimizer=only_trained, steps=2)
    state = train_elastic(lesson).run._trainer.state
    files = RunDir(tmp_path / "run")
    files.root.mkdir()
    write_finished(state, files, build_spec())
    files.run.write_bytes(msgspec.json.encode(RunRecord(spec=build_spec(), created="")))
    export_model(read_finished_run(files, optimizer=False), "hf", tmp_path / "out")
    read = peft.PeftModel.from_pretrained(base, tmp_path / "out")
    inputs = make_samples().tensors[0]
    assert torch.equal(read(inputs), state.model(inputs))


def test_a_config_of_the_base_model_is_never_exported_with_the_tensors_of_an_adapter(tmp_path):
    # Run directories looked so before Elastane supported adapters.
    adapted = Adapted(tmp_path, HOW["lora"])
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (adapted.files.root / name).unlink()
    (adapted.files.root / "base_config.json").rename(adapted.files.model_files.config)
    with pytest.raises(ReadbackFailed, match="from_pretrained") as refused:
        adapted.export()
    assert refused.value.exit_code == 1
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []


def test_damage_to_the_adapter_is_noticed(tmp_path):
    adapted = Adapted(tmp_path, HOW["lora"])
    text = adapted.files.root / "adapter_config.json"
    text.write_text(json.dumps(json.loads(text.read_text()) | {"r": 5}))
    with pytest.raises(ReadbackFailed, match="peft"):
        adapted.export()
    assert not adapted.out.exists()


def test_names_of_the_base_model_are_found_among_those_of_the_adapter():
    before = "base_model.model.transformer."
    names = [
        f"{before}wte.weight",
        f"{before}h.0.attn.base_layer.weight",
        f"{before}h.0.attn.lora_A.default.weight",
        f"{before}ln_f.original_module.weight",
        f"{before}ln_f.modules_to_save.default.weight",
    ]
    assert map_base_names(names) == {
        "transformer.wte.weight": names[0],
        "transformer.h.0.attn.weight": names[1],
        "transformer.ln_f.weight": names[3],
    }
