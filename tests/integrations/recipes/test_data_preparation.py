"""The data of a recipe is read before its run or job exists, and encoded once."""

import subprocess
import sys

import msgspec
import pytest
from typer.testing import CliRunner

from elastane.cli.main import app
from elastane.common.errors import BadInput
from elastane.integrations.recipes import data_preparation
from elastane.integrations.recipes.data import encoded_samples, files, open_data
from elastane.integrations.recipes.data.tokenizer import train_tokenizer
from elastane.integrations.recipes.data_preparation import check_vocabulary, prepare_data
from elastane.integrations.recipes.model_source import INDEX, check_pretrained_files
from elastane.integrations.recipes.prepared_data import PreparedData
from elastane.integrations.recipes.resolution import load_recipe

CHAT = [
    {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"{n}."}]}
    for n in range(30)
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path / "home"))
    return tmp_path


def load(folder, name="llama-tiny-chat", *changes):
    short = ("data.vocabulary=300", "training.steps=9", "training.warmup_steps=1")
    return load_recipe(name, [*short, *changes], folder)


@pytest.mark.parametrize("words", [("run",), ("submit", "--team", "default")])
def test_a_bad_row_is_refused_before_a_run_or_a_job_exists(folder, write_rows, words):
    write_rows(*CHAT, {"messages": [{"role": "asistant", "content": "a"}]})
    before = sorted(folder.rglob("*"))
    command, *options = words
    typed = ["recipe", command, "llama-tiny-chat", *options, "--set", "data.path=rows.jsonl"]
    refused = CliRunner().invoke(app, typed)
    assert refused.exit_code == 2
    assert "rows.jsonl: line 31: message 1 has the unknown role 'asistant'" in refused.stderr
    assert sorted(folder.rglob("*")) == before


def test_a_job_that_is_only_printed_reads_no_row(folder, write_rows):
    write_rows({"messages": 7})
    typed = ["recipe", "submit", "llama-tiny-chat", "--dry-run", "--set", "data.path=rows.jsonl"]
    assert CliRunner().invoke(app, typed).exit_code == 0


def test_a_machine_without_torch_submits_without_reading_the_rows(monkeypatch, capsys, folder):
    from elastane.cli.command import open_console
    from elastane.cli.recipes.training import prepare_for_job
    from elastane.common import extras

    monkeypatch.setitem(extras.MODULES, "torch", ("no_such_module",))
    prepare_for_job(load(folder), open_console())
    assert "not checked here: training needs torch: no_such_module is not installed" in " ".join(
        capsys.readouterr().out.split()
    )


def test_workers_find_the_prepared_samples_and_encode_nothing(folder, write_rows, monkeypatch):
    path = write_rows(*CHAT, {"prompt": "only", "completion": "here"})
    recipe = load(folder, "llama-tiny-chat", f"data.path={path}")
    request = msgspec.json.encode(recipe).decode()
    program = [sys.executable, "-P", "-m", "elastane.integrations.recipes.data_preparation", request]
    process = subprocess.run(program, capture_output=True, text=True, check=True)
    prepared = msgspec.json.decode(process.stdout, type=PreparedData)
    assert process.stderr == ""
    assert prepared.describe().startswith("data: 31 samples; 1 of them held out, too few for")
    monkeypatch.setattr(encoded_samples, "encode_sample", None)
    tokenizer = open_data.load_tokenizer(recipe.data, recipe.task)
    opened = open_data.open_data(recipe.data, tokenizer, recipe.task, recipe.batch.context)
    assert (len(opened.train), len(opened.held_out)) == (prepared.train, prepared.held_out)


def test_data_of_which_nothing_is_held_out_says_so(folder, write_rows):
    path = write_rows(*CHAT)
    prepared = prepare_data(load(folder, "llama-tiny-chat", f"data.path={path}", "data.held_out=0"))
    assert prepared.describe() == "data: 30 samples"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["training.steps=0"], "training.warmup_steps: 20 is not less than the 2 steps that 29 samples make"),
        (["data.too_long=refuse", "batch.context=8"], r"rows.jsonl: line 1: it has \d+ tokens"),
        (["data.held_out=other.jsonl"], "other.jsonl: line 1: 'messages' is not a list of messages"),
        (["task=preference"], r"rows.jsonl: line 1: .* not 'prompt', 'chosen' and 'rejected'"),
    ],
)
def test_data_that_does_not_fit_the_recipe_is_refused(folder, write_rows, changes, words):
    write_rows({"messages": 7}, name="other.jsonl")
    path = write_rows(*CHAT)
    recipe = load(folder, "llama-tiny-chat", f"data.path={path}", "training.warmup_steps=20", *changes)
    with pytest.raises(BadInput, match=words):
        prepare_data(recipe)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(folder, tokenizer):
    sized = load(folder, "llama-tiny", "model.config.vocab_size=280")
    check_vocabulary(sized, 280)
    with pytest.raises(BadInput, match=r"data\.tokenizer: has 281 tokens, and the model has 280"):
        check_vocabulary(sized, 281)
    save_model(folder)
    train_tokenizer(["abc"], 259).save_pretrained(folder)
    pretrained = load(folder, "llama-tiny", f"model.from={folder}", f"data.tokenizer={folder}")
    with pytest.raises(BadInput, match=r"data\.tokenizer: has 259 tokens, and the model has 100"):
        prepare_data(pretrained)


def save_model(folder):
    """Save a model of 100 tokens in several files."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=100, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="2KB")


def cut_last_shard(folder):
    *_, last = sorted(folder.glob("*.safetensors"))
    last.write_bytes(last.read_bytes()[:-8])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut_last_shard, r"model-\d+-of-\d+.safetensors cannot be read: .*incomplete"),
        (lambda folder: min(folder.glob("*.safetensors")).unlink(), "has no file model-00001-of-"),
        (lambda folder: (folder / INDEX).write_text("[]"), "index.json cannot be read: it is not an object"),
        (lambda folder: (folder / INDEX).write_text('{"weight_map": [1]}'), "index.json has no weight_map"),
        (
            lambda folder: (folder / "config.json").write_text('{"model_type": "secret"}'),
            "config.json describes no model that transformers knows: .*secret",
        ),
    ],
)
def test_a_damaged_model_is_refused_before_the_run_exists(folder, damage, words):
    save_model(folder)
    check_pretrained_files(folder)
    damage(folder)
    with pytest.raises(BadInput, match=words):
        check_pretrained_files(folder)


def test_much_data_is_announced(folder, write_rows, monkeypatch, capsys):
    recipe = load(folder, "llama-tiny-chat", f"data.path={write_rows(*CHAT)}")
    prepare_data(recipe)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(data_preparation, "MUCH_BYTES", 1000)
    prepare_data(recipe)
    assert capsys.readouterr().err == "reading 2.74 kB of data; its tokens stay in the cache\n"


def test_files_without_text_are_named(folder):
    (folder / "empty.txt").write_text("")
    (folder / "blank.txt").write_text("\n")
    for path, named in (("empty.txt", "empty.txt"), ("*.txt", r"blank.txt \(and 1 more\)")):
        with pytest.raises(BadInput, match=f"{named} has no text to train a tokenizer on"):
            prepare_data(load(folder, "llama-tiny", f"data.path={path}"))


def test_a_cache_that_cannot_be_written_and_data_that_cannot_be_read_are_named(
    folder, write_rows, monkeypatch
):
    recipe = load(folder, "llama-tiny-chat", f"data.path={write_rows(*CHAT)}")

    def refuse(file, _cache):
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(files, "digest_content", refuse)
    with pytest.raises(BadInput, match=r"cannot be prepared: .*rows.jsonl: Permission denied"):
        prepare_data(recipe)
    (folder / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "file"))
    with pytest.raises(BadInput, match=r"file/elastane/recipes: Not a directory") as caught:
        prepare_data(recipe)
    assert "XDG_CACHE_HOME" in caught.value.do
