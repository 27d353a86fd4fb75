"""Other libraries load the trained model bit for bit from a finished run and from its exports."""

import copy
import json

import msgspec
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict as set_optimizer
from torch.utils.data import TensorDataset

from elastane.common.errors import BadInput
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunRecord
from elastane.run.worker.export import DTYPES, convert, export_model, read_finished_run
from elastane.run.worker.finished import formats
from elastane.run.worker.finished.model_writer import write_finished
from elastane.run.worker.finished.readback import ReadbackFailed

from .lessons import FEATURES, Lesson, assert_same_bits, build_spec, prepare_lesson, train_elastic

VOCABULARY, CONTEXT = 11, 8
FORMATS = ("hf", "dcp", "torch")
NO_GROUP = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # reading in one process


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def tiny_gpt2(*, tied=True):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": VOCABULARY, "n_positions": CONTEXT}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **ends, tie_word_embeddings=tied))


def tiny_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8, "intermediate_size": 16}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return LlamaForCausalLM(
        LlamaConfig(**sizes, **ends, vocab_size=VOCABULARY, max_position_embeddings=CONTEXT)
    )


def make_texts():
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randint(VOCABULARY, (12, CONTEXT), generator=generator))


def make_language_lesson(model):
    def loss(model, batch):
        return model(input_ids=batch[0], labels=batch[0]).loss, None

    return Lesson(model, loss=loss, data=make_texts(), steps=3, global_batch=4, microbatch=2)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES)
        self.norm = nn.BatchNorm1d(FEATURES)
        self.second = nn.Linear(FEATURES, FEATURES)
        self.second.weight = self.first.weight

    def forward(self, inputs):
        return self.second(self.norm(self.first(inputs)))


def two_groups(model):
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    return torch.optim.AdamW(
        [{"params": weights, "weight_decay": 0.1}, {"params": others, "lr": 0.02}], lr=0.05, betas=(0.8, 0.9)
    )


class Finished:
    """The directory of a finished run, with its trained model."""

    def __init__(self, folder, lesson, **wishes):
        self.learned = train_elastic(lesson)
        self.files = RunDir(folder / "run")
        self.files.root.mkdir()
        wished = build_spec(save_optimizer=True, **wishes)
        write_finished(self.learned.run._trainer.state, self.files, wished)
        record = RunRecord(spec=wished, created="2026-01-01T00:00:00Z")
        self.files.run.write_bytes(msgspec.json.encode(record))
        self.out = folder / "out"

    @property
    def model(self):
        return self.learned.model

    def export(self, kind, dtype=None):
        trained = read_finished_run(self.files, optimizer=True)
        return export_model(convert(trained, DTYPES[dtype]) if dtype else trained, kind, self.out)


@pytest.fixture
def plain(tmp_path):
    return Finished(tmp_path, Lesson(Plain, optimizer=two_groups))


@pytest.fixture
def gpt2(tmp_path):
    pytest.importorskip("transformers")
    return Finished(tmp_path, make_language_lesson(tiny_gpt2))


def test_safetensors_reads_the_weights_of_a_run(plain):
    read = safetensors.torch.load_file(plain.files.model_files.weights)
    trained = plain.model.state_dict()
    assert trained.keys() - read.keys() == {"second.weight"}
    assert all(torch.equal(read[name], trained[name]) for name in read)


def test_plain_torch_loads_the_state_dict_with_weights_only(plain):
    plain.export("torch")
    read = torch.load(plain.out / "model.pt", weights_only=True)
    assert read["second.weight"].data_ptr() == read["first.weight"].data_ptr()
    fresh = Plain()
    fresh.load_state_dict(read)
    assert_same_bits(fresh, plain.model)


def test_the_groups_of_the_optimizer_are_written_as_they_are_at_the_end(tmp_path):
    def decaying(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)

    finished = Finished(tmp_path, Lesson(Plain, optimizer=two_groups, scheduler=decaying, steps=4))
    written = json.loads(finished.files.model_files.optimizer_groups.read_bytes())
    assert written["optimizer"] == "AdamW"
    assert [group["lr"] for group in written["groups"]] == [0.05 / 4, 0.02 / 4]
    assert written["groups"][0]["params"] == ["first.weight"]


def take_step(model, optimizer):
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, 0.1 * number - 0.2)
    optimizer.step()


def assert_continues_alike(plain, model, optimizer):
    """Assert that the next step of the loaded optimizer gives the bits of the trained one."""
    expected = copy.deepcopy(plain.model)
    original = two_groups(expected)
    original.load_state_dict(plain.learned.optimizer.state_dict())
    take_step(expected, original)
    take_step(model, optimizer)
    assert_same_bits(model, expected)


def test_plain_torch_continues_with_the_exported_optimizer(plain):
    plain.export("torch")
    model = Plain()
    model.load_state_dict(torch.load(plain.out / "model.pt", weights_only=True))
    optimizer = two_groups(model)
    optimizer.load_state_dict(torch.load(plain.out / "optimizer.pt", weights_only=True))
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    assert_continues_alike(plain, model, optimizer)


@NO_GROUP
def test_a_distributed_checkpoint_loads_in_place(plain):
    plain.export("dcp")
    fresh = Plain()
    state = {"model": fresh.state_dict()}
    dcp.load(state, checkpoint_id=plain.out, no_dist=True)
    assert_same_bits(fresh, plain.model)


@NO_GROUP
def test_a_distributed_checkpoint_continues_with_the_exported_optimizer(plain):
    plain.export("dcp")
    model = Plain()
    optimizer = two_groups(model)
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    state = {
        "model": model.state_dict(),
        "optimizer": get_optimizer_state_dict(model, optimizer, options=flat),
    }
    dcp.load(state, checkpoint_id=plain.out, no_dist=True)
    set_optimizer(model, optimizer, state["optimizer"], options=flat)
    assert_continues_alike(plain, model, optimizer)


@pytest.mark.parametrize(
    "build", [tiny_gpt2, lambda: tiny_gpt2(tied=False), tiny_llama], ids=["gpt2", "untied", "llama"]
)
@pytest.mark.parametrize("wishes", [{}, {"max_shard_bytes": 1000}], ids=["whole", "shards"])
@pytest.mark.parametrize("where", ["run directory", "export"])
def test_transformers_loads_its_own_models(tmp_path, build, wishes, where):
    transformers = pytest.importorskip("transformers")
    finished = Finished(tmp_path, make_language_lesson(build), **wishes)
    if where == "export":
        finished.export("hf")
    folder = finished.out if where == "export" else finished.files.root
    read, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert type(read) is type(finished.model)
    assert not any(report.values()), report
    assert_same_bits(read, finished.model)
    tied = finished.model.config.tie_word_embeddings
    assert (read.get_output_embeddings().weight is read.get_input_embeddings().weight) == tied
    assert read.generation_config.to_dict() == finished.model.generation_config.to_dict()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_converted_model_equals_the_conversion_by_torch(gpt2, dtype):
    import transformers

    gpt2.export("hf", dtype)
    read = transformers.AutoModelForCausalLM.from_pretrained(gpt2.out)
    assert read.dtype == DTYPES[dtype]
    assert_same_bits(read, copy.deepcopy(gpt2.model).to(DTYPES[dtype]))


def test_only_floating_point_values_are_converted(plain):
    plain.export("torch", "bf16")
    read = torch.load(plain.out / "model.pt", weights_only=True)
    assert read["first.weight"].dtype == torch.bfloat16
    assert read["norm.num_batches_tracked"].dtype == torch.int64
    state = torch.load(plain.out / "optimizer.pt", weights_only=True)["state"]
    assert {entry.dtype for entries in state.values() for entry in entries.values()} == {torch.float32}


def test_the_configuration_names_the_class_and_the_type_of_the_weights(gpt2):
    config = json.loads(gpt2.files.model_files.config.read_text())
    assert config["architectures"] == ["GPT2LMHeadModel"]
    assert config["dtype"] == "float32"


@pytest.mark.parametrize("kind", ["hf", "torch"])
def test_exporting_twice_gives_the_same_bytes(gpt2, kind):
    gpt2.export(kind)
    first = {path.name: path.read_bytes() for path in gpt2.out.iterdir()}
    for path in gpt2.out.iterdir():
        path.unlink()
    gpt2.export(kind)
    assert {path.name: path.read_bytes() for path in gpt2.out.iterdir()} == first


def test_hf_is_refused_for_a_model_that_is_not_of_transformers(plain):
    with pytest.raises(BadInput, match=r"no config\.json"):
        plain.export("hf")
    assert [path.name for path in plain.out.parent.iterdir()] == ["run"]


def wrap(inner):
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner
            self.config = inner.config

        def forward(self, **words):
            return self.inner(**words)

    return Wrapper()


def test_hf_is_refused_for_a_module_around_a_model_of_transformers(tmp_path):
    pytest.importorskip("transformers")
    finished = Finished(tmp_path, make_language_lesson(lambda: wrap(tiny_gpt2())))
    assert not finished.files.model_files.config.exists(), "from_pretrained would load random weights"
    with pytest.raises(BadInput, match=r"no config\.json") as refused:
        finished.export("hf")
    assert "run.prepare" in refused.value.do


def compiled(build):
    return torch.compile(build(), backend="eager")


def partly_compiled():
    model = tiny_gpt2()
    model.transformer.h[0] = torch.compile(model.transformer.h[0], backend="eager")
    return model


@pytest.mark.filterwarnings("ignore")  # torch.compile warns about transformers
@pytest.mark.parametrize("build", [lambda: compiled(tiny_gpt2), partly_compiled], ids=["whole", "layer"])
@pytest.mark.parametrize("where", ["run directory", "export"])
def test_transformers_loads_a_compiled_model(tmp_path, build, where):
    transformers = pytest.importorskip("transformers")
    finished = Finished(tmp_path, make_language_lesson(build))
    if where == "export":
        finished.export("hf")
    folder = finished.out if where == "export" else finished.files.root
    read, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    inputs = make_texts().tensors[0]
    with torch.no_grad():
        assert torch.equal(read.eval()(inputs).logits, finished.model.eval()(inputs).logits)


def test_the_optimizer_of_a_compiled_model_continues_without_compiling(tmp_path):
    lesson = Lesson(lambda: torch.compile(Plain(), backend="eager"), optimizer=two_groups)
    finished = Finished(tmp_path, lesson)
    finished.export("torch")
    model = Plain()
    model.load_state_dict(torch.load(finished.out / "model.pt", weights_only=True))
    optimizer = two_groups(model)
    read = torch.load(finished.out / "optimizer.pt", weights_only=True)
    assert not [name for group in read["param_groups"] for name in group["param_names"] if "_orig" in name]
    optimizer.load_state_dict(read)
    take_step(model, optimizer)


def tiny_mixtral():
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 8}
    more = {"intermediate_size": 16, "num_local_experts": 2, "vocab_size": VOCABULARY}
    return MixtralForCausalLM(MixtralConfig(**sizes, **more, bos_token_id=0, eos_token_id=0))


def test_a_model_with_other_names_on_disk_than_in_memory_is_loaded(tmp_path):
    transformers = pytest.importorskip("transformers")
    finished = Finished(tmp_path, make_language_lesson(tiny_mixtral))
    finished.export("hf")
    assert_same_bits(transformers.AutoModelForCausalLM.from_pretrained(finished.out), finished.model)


def with_another_head():
    model = tiny_gpt2(tied=False)
    model.lm_head = nn.Linear(8, VOCABULARY, bias=True)
    return model


def with_one_more_module():
    model = tiny_gpt2()
    model.extra = nn.Linear(8, 8)
    return model


def contradicting_its_config():
    model = tiny_gpt2(tied=False)
    model.config.n_embd = 16
    return model


@pytest.mark.parametrize("build", [with_another_head, with_one_more_module, contradicting_its_config])
def test_a_model_that_its_config_does_not_describe_is_not_exported(tmp_path, build):
    pytest.importorskip("transformers")
    finished = Finished(tmp_path, make_language_lesson(build))
    with pytest.raises(ReadbackFailed, match="from_pretrained") as refused:
        finished.export("hf")
    assert refused.value.exit_code == 1
    assert "--format torch" in refused.value.do
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_export_reports_that_a_class_of_the_script_was_not_loaded(tmp_path):
    transformers = pytest.importorskip("transformers")

    class Mine(transformers.GPT2LMHeadModel):
        pass

    finished = Finished(tmp_path, make_language_lesson(lambda: Mine(tiny_gpt2().config)))
    assert any("Mine is not one of its classes" in sentence for sentence in finished.export("hf").checked)
    assert_same_bits(Mine.from_pretrained(finished.out), finished.model)


BROKEN = {
    "hf": "model.safetensors",
    "torch": "model.pt",
    "dcp": "__0_0.distcp",
}


@NO_GROUP
@pytest.mark.parametrize("kind", FORMATS)
def test_an_export_notices_bits_that_the_disk_has_changed(gpt2, kind, monkeypatch):
    write = formats.FORMATS[kind]

    def damaging(trained, folder):
        write(trained, folder)
        path = folder / BROKEN[kind]
        content = path.read_bytes()
        needle = bytes(trained.model.read_tensor("transformer.wte.weight").numpy().tobytes()[:16])
        assert needle in content
        path.write_bytes(content.replace(needle, bytes(15) + b"\x01"))

    monkeypatch.setitem(formats.FORMATS, kind, damaging)
    with pytest.raises(ReadbackFailed):
        gpt2.export(kind)
    assert not gpt2.out.exists()


@pytest.mark.parametrize("kind", FORMATS)
def test_an_export_never_overwrites(gpt2, kind):
    gpt2.out.mkdir()
    (gpt2.out / "mine").write_text("mine")
    with pytest.raises(BadInput, match="exists already"):
        gpt2.export(kind)
    assert [path.name for path in gpt2.out.iterdir()] == ["mine"]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_failed_export_leaves_nothing(gpt2, kind):
    with gpt2.files.model_files.weights.open("r+b") as file:
        file.truncate(gpt2.files.model_files.weights.stat().st_size // 2)
    with pytest.raises(BadInput, match="cannot be read"):
        gpt2.export(kind)
    assert not gpt2.out.exists()


def test_a_missing_model_or_optimizer_state_is_refused(tmp_path):
    files = RunDir(tmp_path)
    with pytest.raises(BadInput, match="holds no finished model"):
        read_finished_run(files, optimizer=False)
    files.run.write_bytes(msgspec.json.encode(RunRecord(spec=build_spec(), created="")))
    write_finished(prepare_lesson(Lesson(Plain)).run._trainer.state, files, build_spec())
    assert read_finished_run(files, optimizer=False).optimizer is None
    with pytest.raises(BadInput, match="--save-optimizer"):
        read_finished_run(files, optimizer=True)
