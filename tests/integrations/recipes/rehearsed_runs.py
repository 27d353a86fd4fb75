"""Runs of recipes on the stage, small enough for a test, and how a test disturbs them."""

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from elastane.integrations.recipes import scripts
from elastane.integrations.recipes.recipe import Recipe
from elastane.integrations.recipes.recipe_files import format_recipe
from elastane.integrations.recipes.resolution import SCRIPTS, list_preloaded, load_recipe, resolve_recipe
from elastane.run.nouns.control import AskDrain, AskResize, AskStatus
from tests.run.processes.attempts import Attempts
from tests.run.processes.stage import EndedRun, Stage, do_nothing, find_members, get_state, kill

PACED = Path(__file__).parent / "scripts" / "paced.py"
PACED_FROM = 3
SMALL = (
    "data.vocabulary=400",
    "batch.size=8",
    "batch.microbatch=1",
    "batch.context=48",
    "training.steps=16",
    "training.warmup_steps=2",
    "evaluation.every=8",
    "evaluation.samples=6",
    "evaluation.sample_tokens=6",
)
LAYERS = {"gpt": "n_layer"}
EVERY_STEP = 1
NARROW_GPT = ("n_embd=48", "n_layer=1")
NARROW = ("hidden_size=48", "intermediate_size=96", "num_hidden_layers=1")
"""The sizes of all other families in long runs."""
LONG = ("batch.size=4", "batch.context=64", "data.held_out=0.05", "evaluation.samples=24")
DIGEST_EVERY = 5
"""Steps between the digests of long runs; `Attempts` has the same."""


@dataclass(frozen=True)
class DisturbedSteps:
    """The steps at which a long run is disturbed.

    Args:
        checkpoint_every: steps between two checkpoints; two are complete before ``ended``.
        grown: a worker joins.
        killed: a worker is killed in the next step.
        drained: a worker leaves.
        ended: all processes are killed, and the run is resumed.
    """

    checkpoint_every: int
    grown: int
    killed: int
    drained: int
    ended: int


def make_small_recipe(name: str, *changes: str) -> Recipe:
    """Return a recipe of the catalog, made small enough for a test."""
    family = load_recipe(name, (), Path.cwd()).model.family
    layers = f"model.config.{LAYERS.get(family, 'num_hidden_layers')}=2"
    return resolve_recipe(load_recipe(name, (*SMALL, layers, *changes), Path.cwd()))


def make_long_recipe(name: str, steps: int, *changes: str) -> Recipe:
    """Return a small recipe for hundreds of steps: its batches are smaller, and its model is narrow."""
    family = load_recipe(name, (), Path.cwd()).model.family
    sizes = [f"model.config.{size}" for size in (NARROW_GPT if family == "gpt" else NARROW)]
    evaluations = f"evaluation.every={steps // 2}"
    return make_small_recipe(name, *LONG, evaluations, f"training.steps={steps}", *sizes, *changes)


def find_held_out_loss(ended: EndedRun) -> float:
    """Return the loss on held-out samples after the last step, as the run has printed it."""
    *_, last = ended.messages
    assert last.startswith(f"step {len(ended.run.ledger)}: "), last
    return float(re.search(r"held-out loss ([\d.]+)", last)[1])


def find_script(recipe: Recipe) -> Path:
    return Path(scripts.__file__).with_name(f"{SCRIPTS[recipe.task].rpartition('.')[2]}.py")


def play_recipe(stage: Stage, recipe: Recipe, folder: Path, disturb=do_nothing, **options) -> EndedRun:
    """Train a recipe on the stage; ``options`` are fields of the run's spec."""
    stage.preload(*list_preloaded(recipe))
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "recipe.yaml"
    file.write_text(format_recipe(recipe))
    ended = stage.play(
        str(find_script(recipe)),
        str(file),
        script=PACED,
        disturb=disturb,
        **({"digest_every": EVERY_STEP, "max_workers": recipe.most_workers} | options),
    )
    assert ended.outcome.code == 0, ended.describe()
    assert ended.verdict.problems == (), ended.describe()
    assert not ended.find_events("worker.failed"), ended.describe()
    return ended


async def release_all_steps(run) -> None:
    run.stop_pacing()


async def join_kill_and_drain(run) -> None:
    """Workers 1 and 2 join; worker 0 is killed in the middle of a step; worker 1 is drained."""
    await run.wait_for_step(PACED_FROM - 1)
    await run.resize(3)
    for joiner in (1, 2):
        await run.wait_for_event("worker.ready", f"worker {joiner}")
    answer = await run.step_until(lambda answer: find_members(answer) == {0, 1, 2})
    run.touch(f"gate-{answer.step + 1}")
    answer = await run.wait_for_step(answer.step + 1)
    run.touch("strike")
    run.touch(f"gate-{answer.step + 1}")
    await run.wait_for_event("worker.died", "worker 0")
    answer = await run.ask(AskDrain(worker=1))
    assert answer.ok, answer.why
    await run.step_until(lambda answer: get_state(answer, 1) == "")
    run.stop_pacing()


def disturb_run(attempts: Attempts, recipe: Recipe, folder: Path, at: DisturbedSteps) -> None:
    """Let a worker join, kill one, let one leave, kill all processes, and resume on one worker."""
    file = folder / "recipe.yaml"
    file.write_text(format_recipe(recipe))
    options = (
        "--start=2",
        f"--checkpoint-every={at.checkpoint_every} steps",
        f"--workers=1:{recipe.virtual_ranks}",
    )
    attempts.begin(*options, script=str(PACED), args=(str(find_script(recipe)), str(file)), sized=False)
    attempts.wait_for_step(2)
    release_steps(attempts, at.grown)
    attempts.wait_for_step(at.grown)
    attempts.ask(AskResize(workers=3))
    attempts.wait_for_event("worker.ready", 3)
    release_steps(attempts, at.killed)
    attempts.wait_for_step(at.killed)
    # The worker dies wherever in the next step it is.
    release_steps(attempts, at.killed + 1)
    kill(attempts.ask(AskStatus()), "worker", 0)
    release_steps(attempts, at.drained)
    attempts.wait_for_event("worker.died")
    attempts.ask(AskDrain(worker=1))
    release_steps(attempts, at.ended)
    attempts.wait_for_event("worker.left")
    attempts.wait_for_event("checkpoint.saved", 2)
    attempts.kill_everything()
    attempts.touch("gates")
    attempts.resume("--start=1")


def release_steps(attempts: Attempts, last: int) -> None:
    """Let the paced run make all steps up to this one."""
    for step in range(3, last + 1):
        attempts.touch(f"gate-{step}")


def assert_equals_undisturbed(ended: EndedRun, reference: EndedRun) -> None:
    """Assert that a run that `disturb_run` has disturbed has the bits of the undisturbed one."""
    assert ended.outcome.code == 0, ended.describe()
    assert {len(line.workers) for line in ended.run.ledger} >= {1, 2, 3}
    assert ended.losses == reference.losses
    assert ended.digests == reference.digests
    assert read_files(ended) == read_files(reference)
    assert ended.verdict.problems == (), ended.describe()


def assert_equal_runs(disturbed: EndedRun, reference: EndedRun) -> None:
    """Assert that two runs have the same losses, digests, messages, samples and files."""
    assert disturbed.losses == reference.losses, disturbed.describe()
    assert disturbed.digests == reference.digests, disturbed.describe()
    assert disturbed.messages == reference.messages, disturbed.describe()
    assert read_files(disturbed) == read_files(reference)


def read_files(ended: EndedRun) -> dict[str, bytes]:
    """Return the files of the finished model, of its tokenizer, and the samples."""
    root = ended.run.run_dir.root
    names = ("*.safetensors", "config.json", "adapter_config.json", "tokenizer*.json", "artifacts/*/*.txt")
    return {
        str(path.relative_to(root)): path.read_bytes() for name in names for path in sorted(root.glob(name))
    }


@torch.no_grad()
def compute_logits(model: nn.Module) -> torch.Tensor:
    """Return the logits that a worker of `paced.py` has written for the same model."""
    # Another test of this process may have left more threads, and their number decides the last bits.
    torch.set_num_threads(1)
    return model.eval()(torch.arange(20, 40)[None]).logits


def list_logits(ended: EndedRun) -> list[torch.Tensor]:
    return [torch.load(path) for path in sorted(ended.run.run_dir.root.glob("logits-*.pt"))]
