"""The pairs of scripts in ``docs/migrating.md``: ``--rewrite`` writes them into the page, and they run."""

import difflib
import json
import re
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from elastane.integrations.recipes.recipe_files import read_recipe
from tests.waiting import WAIT_S

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "migrating.md"
FOLDER = ROOT / "examples" / "migrating"
BLOCK = re.compile(r"<!-- (?P<kind>difference|file): (?P<name>\S+) -->\n.*?<!-- end -->", re.DOTALL)
LONGEST = 1000
FRAMEWORKS = ("torchrun", "ray", "torchft")
LOSS_BEFORE, LOSS_AFTER = 1.2, 0.2
"""The losses of the first and of the last step; an untrained model has about 1.4."""


def read_block(kind: str, name: str) -> str:
    if kind == "file":
        return f"```yaml\n{(FOLDER / name).read_text()}```"
    before, after = ((FOLDER / f"{name}_{part}.py").read_text().splitlines() for part in ("before", "after"))
    _, _, _, *lines = difflib.unified_diff(before, after, n=LONGEST, lineterm="")
    # An unchanged empty line has no mark.
    return "\n".join(["```diff", *(line.rstrip() for line in lines), "```"])


def format_block(match: re.Match[str]) -> str:
    kind, name = match["kind"], match["name"]
    return f"<!-- {kind}: {name} -->\n{read_block(kind, name)}\n<!-- end -->"


def test_the_page_has_the_scripts(request):
    text = PAGE.read_text()
    generated = BLOCK.sub(format_block, text)
    if request.config.getoption("--rewrite"):
        PAGE.write_text(generated)
    else:
        assert generated == text, "run pytest tests/run/examples/test_migrating.py --rewrite"


def test_every_pair_is_on_the_page():
    named = {match["name"].partition("_")[0] for match in BLOCK.finditer(PAGE.read_text())}
    assert named == {path.stem.partition("_")[0] for path in FOLDER.glob("*_before.*")}
    assert named == {path.stem.partition("_")[0] for path in FOLDER.glob("*_after.*")}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_script_of_another_framework_compiles(framework):
    path = FOLDER / f"{framework}_before.py"
    compile(path.read_text(), str(path), "exec")


@pytest.mark.processes
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_migrated_script_trains_the_same_bytes_with_one_worker_and_with_two(stage, framework):
    amount = "--steps=64" if framework == "torchft" else "--epochs=2"
    one, two = (
        stage.play(amount, script=FOLDER / f"{framework}_after.py", start=workers, max_workers=4)
        for workers in (1, 2)
    )
    for ended in (one, two):
        assert ended.outcome.code == 0, ended.describe()
        assert ended.verdict.problems == ()
    assert {len(line.workers) for line in two.run.ledger} == {2}
    first, *_, last = (line.loss for line in one.run.ledger)
    assert first > LOSS_BEFORE
    assert last < LOSS_AFTER
    assert two.losses == one.losses
    assert two.model_digest == one.model_digest


def run_elastane(stage, folder: Path, *words: str) -> str:
    command = [*stage.warm_client, "elastane", *map(str, words)]
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.processes
def test_the_script_of_torchrun_trains_under_its_contract_and_continues_from_its_snapshot(stage, tmp_path):
    def train(name: str, epochs: int) -> list[str]:
        options = ("--contract=torchrun", "--workers=2", f"--run-dir={tmp_path / name}")
        output = run_elastane(
            stage, tmp_path, "run", *options, FOLDER / "torchrun_before.py", f"--epochs={epochs}"
        )
        return re.findall(r"epoch (\d+): loss ([\d.]+)", output)

    first = train("first", 2)
    assert [epoch for epoch, _ in first] == ["1", "2"]
    second = train("second", 3)
    assert [epoch for epoch, _ in second] == ["3"]
    assert float(second[-1][1]) < LOSS_AFTER


def test_the_recipe_has_the_values_of_that_of_hyperpod():
    before = YAML(typ="safe").load(FOLDER / "hyperpod_before.yaml")
    after = read_recipe(str(FOLDER / "hyperpod_after.yaml"))
    config, elastic, devices = (
        before["training_config"],
        before["elastic_policy"],
        before["trainer"]["devices"],
    )
    model, options, data = config["model_config"], config["training_args"], config["datasets"]
    adapter = model["peft_config"]
    assert after.model.source == model["model_name_or_path"]
    assert (after.lora.rank, after.lora.alpha, after.lora.dropout) == (
        adapter["r"],
        adapter["lora_alpha"],
        adapter["lora_dropout"],
    )
    assert after.data.path == data["train_data"]["file_path"]
    assert after.data.held_out == data["val_data"]["file_path"]
    assert after.batch.size == options["train_batch_size"]
    assert after.batch.microbatch == options["micro_train_batch_size"]
    assert after.batch.context == options["max_len"]
    assert (after.training.steps, after.training.epochs) == (0, options["max_epochs"])
    assert after.training.learning_rate == options["learning_rate"]
    assert after.training.weight_decay == options["weight_decay"]
    assert after.training.clip_grad_norm == options["gradient_clipping_threshold"]
    assert after.training.recompute_activations == options["gradient_checkpointing"]
    assert after.workers.min == elastic["min_nodes"] * devices
    assert after.workers.max == elastic["max_nodes"] * devices <= after.virtual_ranks


@pytest.fixture
def small_model(tmp_path, monkeypatch):
    """A folder with a tiny model and its tokenizer, in place of a published one."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from elastane.integrations.recipes.data.tokenizer import train_tokenizer

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tokenizer = train_tokenizer(["How do I reset my password?"], 300)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=128, **sizes))
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.processes
def test_the_recipe_in_place_of_that_of_hyperpod_trains(stage, tmp_path, small_model):
    row = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello! " * 3}]}
    for name, count in (("train", 32), ("held-out", 4)):
        (tmp_path / f"{name}.jsonl").write_text(f"{json.dumps(row)}\n" * count)
    changes = (
        f"model.from={small_model}",
        f"data.path={tmp_path / 'train.jsonl'}",
        f"data.held_out={tmp_path / 'held-out.jsonl'}",
        "batch.size=8",
        "batch.context=64",
        "training.warmup_steps=4",
        "workers.min=2",
        "workers.max=2",
    )
    output = run_elastane(
        stage,
        tmp_path,
        "recipe",
        "run",
        FOLDER / "hyperpod_after.yaml",
        f"--run-dir={tmp_path / 'run'}",
        *(word for change in changes for word in ("--set", change)),
    )
    assert "step 12: held-out loss" in output
    assert (tmp_path / "run" / "adapter_config.json").exists()
