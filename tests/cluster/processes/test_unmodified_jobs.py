"""An unmodified script and a job of Elastane share a cluster; the scheduler knows what a restart costs."""

from collections.abc import Callable, Iterator

import pytest

from elastane.cluster.controller.jobs.scheduler_state import RESTART_S
from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.cluster.nouns.config import SchedulingRules
from elastane.run.observability.run_files import read_events
from tests.run.processes.stage import SCRIPTS
from tests.run.processes.worlds import read_notes
from tests.waiting import wait_until

from .small_cluster import SOURCES, open_cluster, read_json, submit_training

pytestmark = [pytest.mark.processes, pytest.mark.early]

RULES = SchedulingRules(horizon_s=5, cooldown_s=0.5)
"""A restart does not earn back its cost in five seconds, a resize of Elastane does."""


@pytest.fixture
def run_elastane(stage, tmp_path, monkeypatch) -> Iterator[Callable]:
    monkeypatch.setattr("elastane.cluster.controller.loop.REPLAN_S", 1.0)
    with open_cluster(stage, tmp_path, monkeypatch, RULES) as run:
        yield run


def explain(run_elastane: Callable, job: str) -> str:
    return " ".join(read_json(run_elastane, "explain", job)["explanation"]["sentences"])


def test_a_restart_is_measured_and_keeps_the_job_from_growing_back(run_elastane, tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "hold-1").touch()
    script = SCRIPTS / "torchrun" / "elastic_tutorial.py"
    where = ("--env", f"PYTHONPATH={SOURCES}", "--contract", "torchrun", "--workers", "1:6")
    run_elastane("submit", script, "--name", "script", *where, "--", folder, "--epochs=3")
    wait_until(lambda: "epoch 0 of 6" in read_notes(folder), "six workers train")
    assert "assumed until one was measured" in explain(run_elastane, "script")

    # The other job needs half of the cluster.
    submit_training(run_elastane, "ours", "--workers", "3:6", args=("--seconds=0.02", "--steps=100000"))
    wait_until(lambda: "start 0/3 from 1" in read_notes(folder), "the script continues from its snapshot")
    wait_until(lambda: run_elastane.read_job("ours").observed.held, "both train")
    wait_until(lambda: "as measured" in explain(run_elastane, "script"), "the stop is recorded")
    run_dir = EngineDirectories(tmp_path / "home").get_run_dir("script")
    stops = [
        event.detail["stopped_s"]
        for event in read_events(run_dir, torn_tail=True)
        if "stopped_s" in event.detail
    ]
    measured_s = read_json(run_elastane, "describe", "script")["observed"]["resizeS"]
    assert [measured_s] == stops

    # Three devices are idle now, and six workers would be nearly twice as fast.
    run_elastane("cancel", "ours", "--wait")
    dear = f"A resize costs {RESTART_S + measured_s:g} s, and no larger size earns that back within 5 s"
    wait_until(lambda: dear in explain(run_elastane, "script"), "the cost decides")
    submit_training(run_elastane, "grows", "--workers", "1:2", args=("--seconds=0.02", "--steps=100000"))
    wait_until(lambda: run_elastane.read_job("grows").workers == 2, "another job grows")
    assert read_json(run_elastane, "describe", "script")["workers"] == 3
    run_elastane("cancel", "grows", "--wait")

    (folder / "hold-1").unlink()
    wait_until(lambda: run_elastane.read_job("script").state == "finished", "it ends")
    assert read_notes(folder)[-1] == "epoch 2 of 3"
    assert sum(note.startswith("start 0/") for note in read_notes(folder)) == 2
