"""Plans of recipes are compared with what models and runs really need."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from torch.nn import functional
from typer.testing import CliRunner

from elastane.cli.main import app
from elastane.cli.recipes.plan import describe_model_only
from elastane.common.errors import BadInput
from elastane.integrations.recipes.activations import count_flops, count_saved_bytes, estimate_activations
from elastane.integrations.recipes.memory_plan import plan_recipe
from elastane.integrations.recipes.model_measures import measure_model, read_shape
from elastane.integrations.recipes.models import build_model
from elastane.integrations.recipes.optimization import build_optimizer
from elastane.integrations.recipes.recipe_plan import (
    HEADINGS,
    DeviceGroup,
    NodeGroup,
    PlanRequest,
    build_plan_rows,
    describe_illegal_sizes,
    describe_plan,
    format_bytes,
    list_sizes,
    mark_legal_sizes,
    parse_devices,
    parse_nodes,
)
from elastane.integrations.recipes.resolution import load_recipe
from elastane.run.worker.state.model_layout import ModelLayout
from tests.lazy_modules import LazyModule

transformers = LazyModule("transformers")

ignore_peft = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")

SMALL = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
GPT = {
    "vocab_size": 97, "n_embd": 64, "n_head": 4, "n_positions": 64, "bos_token_id": 1, "eos_token_id": 1,
    "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0,
}  # fmt: skip
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}


def build_config(family, layers):
    if family == "gpt2":
        return transformers.GPT2Config(n_layer=layers, **GPT)
    options = SMALL | {"num_hidden_layers": layers}
    if family == "gpt_oss":
        options |= EXPERTS | {"layer_types": ["full_attention"] * layers}
    return transformers.AutoConfig.for_model(family, **options)


def measure_saved_bytes(config, dtype, context):
    """Return the bytes that autograd keeps of a forward pass, without parameters."""
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).train()
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage
        return tensor

    tokens = torch.zeros((2, context), dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logits = model(input_ids=tokens, use_cache=False).logits
        functional.cross_entropy(logits.float().flatten(0, 1), tokens.flatten(), reduction="sum")
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize(
    ("family", "tolerance"), [("llama", 0), ("qwen3", 0), ("gpt2", 0), ("gpt_oss", 0.06)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_planned_activations_of_a_layer_are_those_that_autograd_keeps(family, tolerance, dtype):
    context = 48
    one, two = (measure_saved_bytes(build_config(family, layers), dtype, context) for layers in (1, 2))
    planned = count_saved_bytes(read_shape(build_config(family, 1)), context, dtype.itemsize)
    assert planned == pytest.approx((two - one) / (2 * context), rel=tolerance)


def test_recomputed_activations_are_the_inputs_of_layers_and_one_layer():
    shape = read_shape(build_config("llama", 8))
    usual, recomputed = (
        estimate_activations(shape, sequences=2, context=48, element_bytes=4, recompute=recompute)
        for recompute in (False, True)
    )
    layer = 2 * 48 * count_saved_bytes(shape, 48, 4)
    assert usual.layers_bytes == 8 * layer
    assert recomputed.layers_bytes == layer + 8 * 2 * 48 * 64 * 4
    assert usual.logits_bytes == recomputed.logits_bytes == 2 * 48 * 97 * 12


def load(name, *changes):
    return load_recipe(name, changes, Path.cwd())


def plan(recipe, devices="8", **options):
    return plan_recipe(
        PlanRequest(recipe=recipe, devices=parse_devices(devices), **({"flops_per_s": 1e12} | options))
    )


class Tokenizer:
    """The numbers that a model takes from its tokenizer."""

    bos_token_id = eos_token_id = pad_token_id = 0

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size


@ignore_peft
@pytest.mark.parametrize("name", ["llama-tiny", "gpt-tiny", "gpt-oss-tiny", "qwen3-tiny", "llama-tiny-lora"])
def test_the_planned_model_is_the_one_that_is_trained(name):
    recipe = load(name)
    if recipe.model.source:
        pytest.skip("the recipe begins with a pretrained model")
    measures = measure_model(recipe)
    model = build_model(recipe, Tokenizer(recipe.data.vocabulary))
    optimizer = build_optimizer(model, recipe.training)
    layout = ModelLayout(model, optimizer)
    trained = [(section.elements, section.dtype.itemsize) for section in layout.sections]
    assert list(measures.sections) == trained[: layout.parameter_sections]
    assert measures.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert measures.trained == layout.elements


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_planned_optimizer_state_and_gradients_are_those_of_a_step(dtype):
    recipe = load("llama-tiny", f"model.dtype={dtype}")
    size = plan(recipe, "1").sizes[0]
    model = build_model(recipe, Tokenizer(recipe.data.vocabulary))
    optimizer = build_optimizer(model, recipe.training)
    model(input_ids=torch.zeros((1, 8), dtype=torch.int64)).logits.sum().backward()
    optimizer.step()
    moments = [value for state in optimizer.state.values() for value in state.values() if value.numel() > 1]
    assert size.optimizer_bytes == sum(value.nbytes for value in moments)
    trained = sum(parameter.grad.nbytes for parameter in model.parameters())
    assert size.parameters_bytes == trained
    # The partial sums of 8 microbatches: 4 and 2 and the present pair; its first gradients wait.
    assert recipe.virtual_ranks == 8
    assert size.gradients_bytes == 3 * trained


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama-3.1-8b", 8.03e9),
        ("gpt-oss-20b", 20.9e9),
        ("qwen3-8b", 8.19e9),
        pytest.param("llama-3.1-70b", 70.6e9, marks=pytest.mark.long),
        pytest.param("gpt-oss-120b", 116.8e9, marks=pytest.mark.long),
    ],
)
def test_a_published_size_is_planned_without_its_memory(name, published):
    recipe = load(name)
    found = plan(recipe, "16:80GB", flops_per_s=4e14)
    assert found.parameters == pytest.approx(published, rel=0.01)
    most = 16 // recipe.workers.processes
    assert [size.workers for size in found.sizes] == [
        workers for workers in (1, 2, 4, 8, 16) if workers <= most
    ]
    assert all(size.fits is (size.gpu_bytes <= 80e9) for size in found.sizes)
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found


@ignore_peft
@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("llama-3.2-1b", "80GB"),
        ("llama-3.1-8b", "80GB"),
        ("llama-3.1-8b-chat", "80GB"),
        ("llama-3.1-8b-lora", "80GB"),
        pytest.param("qwen3-8b", "80GB", marks=pytest.mark.long),
        pytest.param("gpt-oss-20b", "141GB", marks=pytest.mark.long),
        pytest.param("gpt-oss-20b-dpo", "80GB", marks=pytest.mark.long),
        pytest.param("llama-3.1-70b-lora", "192GB", marks=pytest.mark.long),
    ],
)
def test_a_published_recipe_fits_the_documented_gpus_from_its_fewest_workers_on(name, memory):
    recipe = describe_model_only(load(name))
    fitting = {size.workers: size.fits for size in plan(recipe, f"16:{memory}", flops_per_s=4e14).sizes}
    assert recipe.workers.min in fitting
    assert all(fits for workers, fits in fitting.items() if workers >= recipe.workers.min), fitting


def test_a_token_of_gpt_oss_passes_through_its_active_parameters_only():
    measures = measure_model(load("gpt-oss-20b"))
    assert measures.computed == pytest.approx(3.6e9, rel=0.2)
    assert measures.computed < measures.parameters / 5


def test_flops_follow_the_formula():
    shape = read_shape(build_config("llama", 2))
    attention = 12 * 2 * 128 * 48
    assert count_flops(shape, 1000, 1000, 48, recompute=False) == 6000 + attention
    assert count_flops(shape, 1000, 0, 48, recompute=False) == 4000 + attention
    assert count_flops(shape, 1000, 1000, 48, recompute=True) == 8000 + attention * 4 / 3


def test_processes_divide_the_memory_of_a_worker_and_take_a_device_each():
    one, eight = (plan(load("llama-tiny", f"workers.processes={count}"), "8") for count in (1, 8))
    assert [size.workers for size in one.sizes] == [1, 2, 4, 8]
    (size,) = eight.sizes
    assert (size.workers, size.microbatches) == (1, 1)
    assert size.optimizer_bytes == pytest.approx(one.sizes[0].optimizer_bytes / 8, rel=0.01)
    assert size.memory_bytes < one.sizes[3].memory_bytes
    assert "Processes: 8 for each worker" in " ".join(describe_plan(eight))
    assert "Memory: of one process" in " ".join(describe_plan(eight))
    with pytest.raises(BadInput, match=r"4 devices are fewer than the recipe needs: .* with 8 processes"):
        plan(load("llama-tiny", "workers.processes=8"), "4")
    with pytest.raises(BadInput, match="cannot be planned for several nodes"):
        plan(load("llama-tiny", "workers.processes=2"), "4", nodes=NodeGroup(2))


def test_more_copies_cost_memory_and_fewer_workers_time():
    sizes = {
        copies: plan(load("llama-tiny", f"workers.copies={copies}")).sizes[-1] for copies in ("1", "2", "all")
    }
    assert sizes["1"].optimizer_bytes < sizes["2"].optimizer_bytes < sizes["all"].optimizer_bytes
    assert len({size.traffic_bytes for size in sizes.values()}) == 1
    steps = [size.step_s for size in plan(load("llama-tiny")).sizes]
    assert steps == sorted(steps, reverse=True)


@ignore_peft
def test_a_preference_run_keeps_a_copy_of_the_model_unless_it_trains_an_adapter():
    whole = plan(load("llama-tiny", "task=preference"))
    adapter = plan(load("llama-tiny", "task=preference", "lora.rank=4"))
    assert whole.sizes[0].parameters_bytes == 2 * 4 * whole.parameters
    assert adapter.sizes[0].parameters_bytes == 4 * adapter.parameters
    assert adapter.trained < adapter.parameters / 10


def test_the_speed_of_a_worker_is_measured_if_it_is_not_given():
    found = plan(load("llama-tiny"), "1", flops_per_s=None)
    assert found.is_measured
    assert found.flops_per_s > 0
    assert "measured on this machine" in " ".join(describe_plan(found))


def test_a_table_has_a_row_for_each_size():
    rows = build_plan_rows(plan(load("llama-tiny"), "4:5MB"))
    assert all(len(row) == len(HEADINGS) for row in rows)
    assert [row[0] for row in rows] == ["1", "2", "4"]
    assert rows[0][HEADINGS.index("on a GPU")].endswith("(too much)")


def test_a_plan_says_if_no_number_of_workers_fits():
    sentences = {memory: describe_plan(plan(load("llama-tiny"), f"4:{memory}")) for memory in ("5MB", "5GB")}
    assert "No number of workers fits" in sentences["5MB"][-1]
    assert not any("fits" in sentence for sentence in sentences["5GB"])


def test_a_gpu_has_the_partial_sums_if_its_memory_suffices_for_them():
    size = plan(load("llama-tiny"), "1:1GB").sizes[0]
    trained = size.parameters_bytes
    assert size.gpu_bytes == size.memory_bytes
    # The final sum of the step, and a mirror of the parameters.
    assert size.host_bytes == 2 * trained


def test_a_small_gpu_has_no_partial_sums():
    size = plan(load("llama-tiny"), "1:10MB").sizes[0]
    trained = size.parameters_bytes
    largest = size.gpu_gradients_bytes - trained
    assert 0 < largest < trained
    assert size.gpu_bytes == trained + trained + largest + 2 * trained + size.activations_bytes
    assert size.host_bytes == size.gradients_bytes + trained


def test_the_command_prints_its_plan(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    typed = ["recipe", "plan", "llama-tiny", "--devices", "2:5MB", "--flops", "1e12", "--bandwidth", "2GB"]
    page = CliRunner().invoke(app, typed, env={"COLUMNS": "200"})
    assert page.exit_code == 0, page.output
    headings, *rows = [line.split() for line in page.stdout.splitlines()]
    assert headings[:2] == ["workers", "microbatches"]
    assert [row[:2] for row in rows[:2]] == [["1", "8"], ["2", "4"]]
    text = " ".join(page.stdout.split())
    planned = plan(load("llama-tiny"), "2:5MB", flops_per_s=1e12, bandwidth_bytes_per_s=2e9)
    for sentence in describe_plan(planned):
        assert sentence in text
    for row in build_plan_rows(planned):
        assert " ".join(row) in text
    refused = CliRunner().invoke(app, ["recipe", "plan", "llama-tiny", "--devices", "many"])
    assert refused.exit_code == 2
    assert "invalid devices: 'many'" in refused.stderr


def plan_with_source(name, source, *options):
    typed = ["recipe", "plan", name, "--devices", "1", "--flops", "1e12", "--set", f"model.from={source}"]
    return CliRunner().invoke(app, [*typed, *options])


def test_a_plan_is_for_the_model_that_was_typed(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_: pytest.fail("downloaded"))
    # The catalog has the sizes of this model, in another recipe and of another family.
    page = plan_with_source("llama-3.1-8b-lora", "Qwen/Qwen3-0.6B-Base", "--json")
    assert page.exit_code == 0, page.output
    planned = json.loads(page.stdout)
    assert planned["parameters"] - planned["trained"] == 596_049_920


def test_a_plan_reads_the_configuration_of_another_model_of_the_hub(monkeypatch, tmp_path):
    build_config("llama", 2).save_pretrained(tmp_path)
    asked = []

    def download(*words):
        asked.append(words)
        return str(tmp_path / "config.json")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    found = describe_model_only(load("llama-3.1-8b-lora", "model.from=org/model"))
    assert asked == [("org/model", "config.json")]
    model = transformers.AutoModelForCausalLM.from_config(build_config("llama", 2))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    measures = measure_model(found)
    assert measures.parameters - measures.trained == parameters
    # A folder needs no weights either.
    in_folder = describe_model_only(load("llama-3.1-8b-lora", f"model.from={tmp_path}"))
    assert measure_model(in_folder) == measures


def test_a_plan_for_a_model_that_cannot_be_read_is_refused(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def refuse(*_):
        raise ConnectionError

    monkeypatch.setattr("huggingface_hub.hf_hub_download", refuse)
    refused = plan_with_source("llama-tiny", "org/model")
    assert refused.exit_code == 2
    assert "the model org/model cannot be downloaded" in " ".join(refused.stderr.split())
    assert "check the network" in refused.stderr
    refused = plan_with_source("llama-tiny", "./gone")
    assert refused.exit_code == 2
    assert "model.from: no such folder" in " ".join(refused.stderr.split())


@pytest.mark.long
def test_a_plan_for_several_nodes_counts_what_leaves_one(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    typed = ["recipe", "plan", "llama-tiny", "--devices", "4", "--flops", "1e12"]
    page = CliRunner().invoke(app, [*typed, "--nodes", "2", "--link", "1gbit", "--json"])
    assert page.exit_code == 0, page.output
    sizes = {size["workers"]: size for size in json.loads(page.stdout)["sizes"]}
    gradients = 4 * json.loads(page.stdout)["trained"]
    assert [sizes[workers]["nodes"] for workers in (1, 2, 4)] == [1, 1, 2]
    assert [sizes[workers]["node_traffic_bytes"] for workers in (1, 2)] == [0, 0]
    # Two equal nodes: 2 G (N-1)/N is G. At 1 Gbit/s it takes longer than on one node by its time there.
    assert sizes[4]["node_traffic_bytes"] == gradients
    one = json.loads(CliRunner().invoke(app, [*typed, "--json"]).stdout)["sizes"][-1]
    inside_s = sizes[4]["largest_traffic_bytes"] / 1.25e9 - one["largest_traffic_bytes"] / 1.25e9
    assert sizes[4]["step_s"] - one["step_s"] == pytest.approx(gradients / 1.25e8 + inside_s)
    assert sizes[4]["traffic_bytes"] == one["traffic_bytes"]
    table = CliRunner().invoke(app, [*typed, "--nodes", "2"], env={"COLUMNS": "250"}).stdout
    assert table.splitlines()[0].endswith("nodes  leaves a node  on its link")
    assert "2 of 2 devices" in table


@pytest.mark.parametrize(
    ("nodes", "link", "error"),
    [
        (3, None, "invalid number of nodes: 3, with 8 devices"),
        (0, None, "invalid number of nodes"),
        (1, "1gbit", "--link needs --nodes"),
        (2, "fast", "invalid link: 'fast'"),
        (2, "0gbit", "invalid link: '0gbit'"),
        (2, "10GB", "invalid link: '10GB'"),
    ],
)
def test_other_nodes_and_links_are_refused(nodes, link, error):
    with pytest.raises(BadInput, match=error):
        parse_nodes(nodes, link, DeviceGroup(8))


def test_a_link_has_a_speed_in_bits():
    assert parse_nodes(2, "1gbit", DeviceGroup(8)) == NodeGroup(2, 1.25e8)
    assert parse_nodes(2, "2.5Gbit/s", DeviceGroup(8)) == NodeGroup(2, 3.125e8)


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("8", DeviceGroup(8)),
        ("8:80GB", DeviceGroup(8, 80_000_000_000)),
        ("1:1.5gib", DeviceGroup(1, 3 << 29)),
        (" 2:512M ", DeviceGroup(2, 512_000_000)),
    ],
)
def test_devices_are_a_number_with_perhaps_their_memory(text, devices):
    assert parse_devices(text) == devices


@pytest.mark.parametrize("text", ["", "0", "-1", "8:", "8:GB", "8:80XB", "9" * 30, "8:80GB:2"])
def test_other_devices_are_refused(text):
    with pytest.raises(BadInput, match="invalid devices") as caught:
        parse_devices(text)
    assert "--devices 8:80GB" in caught.value.do


def test_only_legal_sizes_are_planned():
    assert list_sizes(6, 100, ()) == (1, 2, 4, 6)
    assert list_sizes(64, 5, ()) == (1, 2, 4, 5)
    assert list_sizes(8, 100, (4, 8, 16)) == (4, 8)
    with pytest.raises(BadInput, match="2 devices are fewer than the recipe needs"):
        plan(load("llama-tiny", "workers.sizes=[4, 8]", "workers.min=4"), "2")


@pytest.mark.parametrize(
    ("changes", "devices", "marked"),
    [
        (["workers.min=2", "workers.max=4"], 8, {1, 8}),
        (["workers.min=8"], 4, {1, 2, 4}),
        (["workers.min=2", "workers.sizes=[2, 8]"], 8, set()),
        ([], 8, set()),
    ],
)
def test_a_number_of_workers_that_the_recipe_does_not_allow_is_marked(changes, devices, marked):
    recipe = load("llama-tiny", *changes)
    planned = mark_legal_sizes(plan(recipe, str(devices)), recipe)
    assert {size.workers for size in planned.sizes if not size.legal} == marked
    cells = {row[0] for row in build_plan_rows(planned)}
    assert {f"* {workers}" for workers in marked} == {cell for cell in cells if not cell.isdigit()}
    assert len(describe_illegal_sizes(planned, recipe)) == bool(marked)


def test_the_printed_plan_explains_the_marked_numbers_of_workers(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    typed = ["recipe", "plan", "llama-tiny", "--devices", "2", "--flops", "1e12", "--set", "workers.min=2"]
    page = CliRunner().invoke(app, typed, env={"COLUMNS": "200"})
    assert page.exit_code == 0, page.output
    lines = page.stdout.splitlines()
    assert [line.split("  ")[0].split() for line in (lines[1].strip(), lines[2].strip())] == [
        ["*", "1"],
        ["2"],
    ]
    assert lines[3] == "* The recipe does not run so: it has 2 to 8 workers (workers.min, workers.max)."


def test_sizes_have_three_digits():
    assert [format_bytes(size) for size in (0, 999, 1234, 999_600, 10**9, 12_345 * 10**9, 10**16)] == [
        "0 B", "999 B", "1.23 kB", "1 MB", "1 GB", "12.3 TB", "10,000 TB",
    ]  # fmt: skip


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "processes"), [("llama-tiny", 1), ("llama-tiny", 2), ("llama-tiny-lora", 2), ("gpt-oss-tiny", 2)]
)
def test_the_planned_memory_is_within_a_sixth_of_that_of_a_process(tmp_path, name, processes):
    changes = [
        "model.config.hidden_size=384",
        f"model.config.intermediate_size={384 if name == 'gpt-oss-tiny' else 1024}",
        "model.config.num_hidden_layers=6",
        "batch.context=256",
        "batch.size=8",
        "batch.microbatch=2",
        "data.vocabulary=4096",
        f"workers.processes={processes}",
    ]
    planned = plan(load(name, *changes), str(processes)).sizes[0]
    measured = tmp_path / "measured.json"
    divided = ("-m", "elastane", "run", "--workers=1", f"--processes={processes}")
    program = [
        sys.executable,
        *(divided if processes > 1 else ()),
        *(str(Path(__file__).parent / "measured_memory.py"), str(measured), name, *changes),
    ]
    # The C library returns freed memory at once: its reserve is not the plan's.
    environment = os.environ | {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536"}
    environment["ELASTANE_HOME"] = str(tmp_path / "home")
    subprocess.run(program, cwd=tmp_path, env=environment, check=True, timeout=200)
    assert planned.memory_bytes == pytest.approx(json.loads(measured.read_text()), rel=1 / 6)
