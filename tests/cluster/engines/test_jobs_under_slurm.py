"""Jobs of a controller under a real Slurm: all is real, from the command line to the bytes."""

import os
import shlex

import pytest

from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.cluster.engines.slurm.engine import SlurmEngine
from elastane.cluster.engines.slurm.options import SlurmOptions
from elastane.run.attempts.verification import verify_run
from elastane.run.observability.run_files import read_run
from tests.cluster.processes.small_cluster import SOURCES, open_cluster, read_json, submit_training
from tests.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.processes
STEPS = 60
POOL = {"partition": "main", "gres": "gpu", "cpusPerDevice": "1"}


@pytest.fixture
def home_option() -> str:
    """The option of the engine: ``own`` if its machines share no directory with the controller."""
    return "shared"


@pytest.fixture
def run_elastane(stage, tmp_path, monkeypatch, slurm, home_option):
    """Run a command of a cluster with one pool, in Slurm."""
    # A batch job gets the environment of a login; the tests' packages may not be installed there.
    paths = os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])
    options = SlurmOptions(
        command=stage.build_command("elastane.cli.main"),
        conf=str(slurm.conf),
        answer_s=WAIT_S,
        setup=f"export PYTHONPATH={shlex.quote(paths)} ELASTANE_HOME={shlex.quote(str(tmp_path / 'nodes'))}",
    )
    with open_cluster(
        stage,
        tmp_path,
        monkeypatch,
        open_engine=lambda cluster: SlurmEngine(cluster, options),
        options=POOL,
        engine_options={"home": home_option},
    ) as run:
        yield run
    slurm.end_jobs()


def count_members(run_elastane, name: str) -> int:
    held = read_json(run_elastane, "describe", name)["observed"].get("held", {})
    return sum(part["workers"] - part.get("absent", 0) for part in held.values())


def list_jobs(slurm) -> list[str]:
    """Return the numbers of the running jobs of Slurm, the newest last."""
    return slurm.run("squeue", "-h", "-t", "RUNNING", "-o", "%i", "-S", "i").split()


@pytest.mark.parametrize("home_option", ["shared", pytest.param("own", marks=pytest.mark.long)])
def test_a_job_grows_shrinks_and_loses_an_agent_under_slurm_and_trains_the_same_bytes(
    run_elastane, slurm, tmp_path, stage, home_option
):
    options = ("--workers", "2", "--checkpoint-dir", str(tmp_path / "store"))
    submit_training(run_elastane, "far", *options, args=(f"--steps={STEPS}", "--seconds=0.05"))
    wait_until(lambda: count_members(run_elastane, "far") == 2, "2 workers train", state=slurm.read_outputs)
    run_elastane("scale", "far", "3")
    wait_until(lambda: count_members(run_elastane, "far") == 3, "3 workers train")
    # A user ends one of the jobs of Slurm, which signals every process of it.
    slurm.run("scancel", list_jobs(slurm)[-1])
    wait_until(lambda: len(list_jobs(slurm)) == 3, "another job takes its place")
    run_elastane("scale", "far", "1")
    wait_until(lambda: count_members(run_elastane, "far") == 1, "1 worker trains")
    state = lambda: read_json(run_elastane, "describe", "far")["state"]  # noqa: E731
    wait_until(lambda: state() == "finished", "it has finished")
    run = read_run(EngineDirectories(tmp_path / "home").get_run_dir("far"))
    reference = stage.play(f"--steps={STEPS}")
    assert [line.loss for line in run.ledger] == [line.loss for line in reference.run.ledger]
    assert run.ledger[-1].digest == reference.run.ledger[-1].digest
    assert verify_run(run).problems == ()
    # No worker died, although all its processes got the signal.
    assert not [event for event in run.events if event.kind in ("worker.failed", "worker.died", "node.lost")]
    wait_until(lambda: not list_jobs(slurm), "no job of Slurm is left")
    assert read_json(run_elastane, "describe", "far")["crashes"] == 0
