"""What a job sees of every engine: tests of a `JobSite`, which a class for each engine inherits.

All is real, from the command line to the bytes. `tests.cluster.engines.contract` has the tests of the engines
themselves.

```
class TestJobsUnderMyEngine(JobContract):
    @pytest.fixture
    def site(self): ...
```
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.run.observability.run_files import read_run
from tests.cluster.processes.small_cluster import (
    assert_same_bytes,
    count_members,
    read_json,
    submit_training,
    wait_for_members,
)
from tests.run.processes.stage import Stage
from tests.waiting import wait_until

DIGEST_STEP = 50
"""The first step with a digest in the ledger."""
ENDLESS = ("--steps=100000", "--seconds=0.1")
DEATHS = {"worker.failed", "worker.died", "node.lost"}


class JobSite(Protocol):
    """A cluster with one pool of six devices, in one engine.

    Attributes:
        run_elastane: runs a command of the cluster.
        home: of its controller.
        notifies: what takes a worker away gives it a notice first, so that none dies.
    """

    run_elastane: Callable
    home: Path
    notifies: bool

    def list_parts(self) -> Sequence[object]:
        """Return what the engine runs of the one job, the newest last: its agents, or its workers."""

    def take_away(self, part: object) -> None:
        """Take one of them away, as people and machines do."""

    def read_logs(self) -> object:
        """Return the logs, for the error of a test that waits too long."""


class JobContract:
    """The tests; a subclass has the fixture ``site``."""

    def test_a_job_grows_shrinks_and_loses_a_worker_and_trains_the_same_bytes(
        self, site: JobSite, stage: Stage, tmp_path: Path
    ) -> None:
        run_elastane, logs = site.run_elastane, site.read_logs
        options = ("--workers", "2", "--checkpoint-dir", str(tmp_path / "store"))
        submit_training(run_elastane, "far", *options, args=ENDLESS)
        wait_for_members(run_elastane, "far", 2, logs)
        run_elastane("scale", "far", "3")
        wait_for_members(run_elastane, "far", 3, logs)
        lost = site.list_parts()[-1]
        site.take_away(lost)
        wait_until(lambda: lost not in site.list_parts(), "it is gone", state=logs)
        wait_until(
            lambda: len(site.list_parts()) == count_members(run_elastane, "far") == 3,
            "another one takes its place",
            state=logs,
        )
        run_elastane("scale", "far", "1")
        wait_for_members(run_elastane, "far", 1, logs)
        wait_until(
            lambda: run_elastane.read_job("far").observed.step >= DIGEST_STEP,
            "a digest is in the ledger",
            state=logs,
        )
        run_elastane("cancel", "far", "--wait")
        run = read_run(EngineDirectories(site.home).get_run_dir("far"))
        assert_same_bytes(run, stage.play(f"--steps={len(run.ledger)}").run)
        deaths = [event for event in run.events if event.kind in DEATHS]
        assert bool(deaths) != site.notifies
        wait_until(lambda: not site.list_parts(), "nothing of it is left", state=logs)
        # It was one attempt.
        job = read_json(run_elastane, "describe", "far")
        assert (job["attempts"], job["crashes"]) == (1, 0), job
        assert "run.resumed" not in {event.kind for event in run.events}

    @pytest.mark.long
    def test_a_job_that_is_paused_goes_on_where_it_stopped(
        self, site: JobSite, stage: Stage, tmp_path: Path
    ) -> None:
        run_elastane = site.run_elastane
        options = ("--workers", "2", "--checkpoint-dir", str(tmp_path / "store"))
        submit_training(run_elastane, "far", *options, args=ENDLESS)
        wait_for_members(run_elastane, "far", 2, site.read_logs)
        run_elastane("pause", "far", "--wait")
        wait_until(lambda: not site.list_parts(), "it holds nothing", state=site.read_logs)
        made = run_elastane.read_job("far").observed.step
        run_elastane("resume", "far")
        wait_until(
            lambda: run_elastane.read_job("far").observed.step >= made + DIGEST_STEP,
            "it trains again",
            state=site.read_logs,
        )
        run_elastane("cancel", "far", "--wait")
        run = read_run(EngineDirectories(site.home).get_run_dir("far"))
        assert_same_bytes(run, stage.play(f"--steps={len(run.ledger)}").run)
        assert [event.kind for event in run.events].count("run.resumed") == 1
        assert read_json(run_elastane, "describe", "far")["crashes"] == 0
