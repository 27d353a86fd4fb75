"""Recipes with workers of several processes: they join, lose a process, and go on with other divisions."""

import pytest

from elastane.integrations.recipes.recipe_files import format_recipe
from tests.run.processes.attempts import Attempts

from .rehearsed_runs import (
    PACED,
    find_script,
    join_kill_and_drain,
    make_small_recipe,
    play_recipe,
    read_files,
    release_all_steps,
    release_steps,
)

pytestmark = pytest.mark.processes

UNCLIPPED = "training.clip_grad_norm=1000"
"""The last bits of a norm depend on the division, and so would steps that it scales."""


def make_recipe(name, processes):
    """Return a recipe; with several processes its epochs leave out their last samples."""
    return make_small_recipe(name, UNCLIPPED, f"workers.processes={processes}")


LONG = ("gpt-oss-tiny", "llama-tiny-lora", "gpt-oss-tiny-lora")


@pytest.mark.parametrize(
    "name", ["llama-tiny", *(pytest.param(name, marks=pytest.mark.long) for name in LONG)]
)
def test_divided_workers_join_and_lose_a_process_without_changing_a_byte(stage, tmp_path, name):
    whole = play_recipe(stage, make_recipe(name, 2), tmp_path / "whole", release_all_steps)
    recipe = make_recipe(name, 2)
    ended = play_recipe(stage, recipe, tmp_path / "divided", join_kill_and_drain, processes=2)
    assert ended.find_subjects("worker.died") == ["worker 0"], ended.describe()
    assert ended.find_events("worker.left"), ended.describe()
    assert ended.losses == whole.losses, ended.describe()
    assert ended.messages == whole.messages
    assert read_files(ended) == read_files(whole)


@pytest.mark.long
@pytest.mark.parametrize("name", ["llama-tiny", "gpt-oss-tiny", "llama-tiny-lora"])
def test_a_divided_run_resumes_and_goes_on_with_other_divisions(stage, tmp_path, name):
    whole = play_recipe(stage, make_recipe(name, 2), tmp_path / "whole", release_all_steps)

    def write(processes):
        recipe = make_recipe(name, processes)
        file = tmp_path / f"recipe-{processes}.yaml"
        file.write_text(format_recipe(recipe))
        return str(find_script(recipe)), str(file)

    # A run has the name of its folder, and one home has all of these.
    first = tmp_path / f"{name}-first"
    first.mkdir()
    with Attempts(stage, first) as attempts:
        options = (
            "--processes=2",
            "--workers=1:2",
            "--start=2",
            "--checkpoint-every=4 steps",
            "--keep-last=9",
        )
        attempts.begin(*options, script=str(PACED), args=write(2))
        attempts.wait_for_step(2)
        release_steps(attempts, 6)
        attempts.wait_for_event("checkpoint.saved")
        attempts.kill_everything()
        attempts.touch("gates")
        attempts.resume("--processes=1", "--workers=4", "--start=4")
        ended = attempts.wait_for_end()
        assert ended.outcome.code == 0, ended.describe()
        assert ended.losses == whole.losses
        assert read_files(ended) == read_files(whole)
        for processes, workers in ((4, 1), (1, 4)):
            script, file = write(max(2, processes))
            folder = tmp_path / f"{name}-on-{processes}"
            folder.mkdir()
            with Attempts(stage, folder) as others:
                begins = (f"--from={attempts.run_dir.root}@4", f"--processes={processes}")
                others.begin(
                    *begins, f"--workers=1:{workers}", f"--start={workers}", script=script, args=(file,)
                )
                ended = others.wait_for_end()
            assert ended.outcome.code == 0, ended.describe()
            assert ended.losses == whole.losses[4:]
            assert read_files(ended).keys() <= read_files(whole).keys()
            assert ended.model_digest == whole.model_digest
