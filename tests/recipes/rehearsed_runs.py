"""Runs of recipes on the stage, small enough for a test, and how a test disturbs them."""

from pathlib import Path

import msgspec

from elastane.api.control import AskDrain
from elastane.recipes import scripts
from elastane.recipes.recipe import Recipe
from elastane.recipes.recipe_files import format_recipe
from elastane.recipes.resolution import SCRIPTS, list_preloaded, load_recipe, resolve_recipe
from tests.processes.stage import EndedRun, Stage, do_nothing, find_members, get_state

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


def make_small_recipe(name: str, *changes: str) -> Recipe:
    """Return a recipe of the catalog, made small enough for a test."""
    family = load_recipe(name, (), Path.cwd()).model.family
    layers = f"model.config.{LAYERS.get(family, 'num_hidden_layers')}=2"
    return resolve_recipe(load_recipe(name, (*SMALL, layers, *changes), Path.cwd()))


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
        max_workers=recipe.batch.virtual_ranks,
        **({"digest_every": EVERY_STEP} | options),
    )
    assert ended.outcome.code == 0, ended.describe()
    assert ended.verdict.problems == (), ended.describe()
    assert not ended.find_events("worker.failed"), ended.describe()
    return ended


def change_recipe(recipe: Recipe, **parts: dict) -> Recipe:
    """Return a recipe with changed fields of its parts."""
    changed = {name: msgspec.structs.replace(getattr(recipe, name), **new) for name, new in parts.items()}
    return msgspec.structs.replace(recipe, **changed)


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
