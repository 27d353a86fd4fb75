"""Jobs of a controller under a real Ray: all is real, from the command line to the bytes."""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.cluster.engines.ray.engine import RayEngine
from elastane.cluster.engines.ray.options import RayOptions
from elastane.common.process_identity import read_start_time
from elastane.run.attempts.verification import verify_run
from elastane.run.observability.run_files import read_run
from tests.cluster.engines.ray_daemons import NODES, RayDaemons, open_ray
from tests.cluster.processes.small_cluster import (
    SOURCES,
    TRAINING,
    count_members,
    open_cluster,
    read_json,
    submit_training,
    wait_for_members,
)
from tests.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.processes, pytest.mark.alone, pytest.mark.timeout(900)]
POOL = {"cpusPerDevice": "1"}
ANSWER_S = 8.0
SHORT_S, LONG_S = 30.0, 90.0
"""How long a head is away: less and more than the time after which nodes give up."""
LONGEST_PAUSE_S = 5.0
"""Between two steps of a healthy run, on a machine that others use."""
SUBMISSION = """\
import sys
import ray
import elastane.ray
ray.init(address=sys.argv[1], log_to_driver=False)
script, sources, *args = sys.argv[2:]
with elastane.ray.submit(
    script, name="inside", num_workers=(1, 2), args=args, engine="far", env={"PYTHONPATH": sources}
) as job:
    kinds = [event.kind for event in job.follow()]
    print(job.wait().state, kinds[0], kinds[-1])
"""
"""A program in the Ray cluster. It runs in the Python of Ray."""
NEEDED = "import httpx, msgspec"
DEATHS = ("worker.failed", "worker.died", "node.lost")


@pytest.fixture
def ray() -> Iterator[RayDaemons]:
    with open_ray() as daemons:
        yield daemons


@pytest.fixture
def run_elastane(stage, tmp_path, monkeypatch, ray):
    """Run a command of a cluster with one pool, in Ray."""
    paths = os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])
    options = RayOptions(
        address=ray.address,
        python=ray.python,
        command=stage.build_command("elastane.cli.main"),
        setup=f"export PYTHONPATH={shlex.quote(paths)}",
        answer_s=ANSWER_S,
    )
    with open_cluster(
        stage,
        tmp_path,
        monkeypatch,
        open_engine=lambda cluster: RayEngine(cluster, options),
        options=POOL,
        kind="ray",
    ) as run:
        yield run


class Job:
    """The one job of a test."""

    def __init__(self, run_elastane, tmp_path, stage, ray: RayDaemons, *, steps: int, workers: int) -> None:
        self._run = run_elastane
        self._directory = EngineDirectories(tmp_path / "home").get_run_dir("far")
        self._stage = stage
        self._steps = steps
        self._ray = ray
        args = (f"--steps={steps}", "--seconds=0.05")
        submit_training(
            run_elastane, "far", "--workers", f"1:{workers}", "--checkpoint-every", "20 steps", args=args
        )
        self.wait_for_members(workers)

    def scale(self, workers: int) -> None:
        # Not the number alone: without a lost node there is no room for that least size, and it would stop.
        self._run("scale", "far", f"1:{workers}")
        self.wait_for_members(workers)

    def count_members(self) -> int:
        return count_members(self._run, "far")

    def wait_for_members(self, workers: int) -> None:
        wait_for_members(self._run, "far", workers, self._ray.read_logs)

    def list_steps(self) -> list[int]:
        return [line.step for line in read_run(self._directory).ledger]

    def find_longest_pause_s(self, since_s: float) -> float:
        """Return the longest time between two steps since then, in seconds."""
        times = [line.time for line in read_run(self._directory).ledger if line.time >= since_s]
        return max(after - before for before, after in pairwise(times))

    def read_step(self) -> int:
        return max(self.list_steps(), default=0)

    def wait_for_steps(self, count: int) -> None:
        until = self.read_step() + count
        wait_until(lambda: self.read_step() >= until, f"step {until} is made", state=self._ray.read_logs)

    def list_agents(self) -> list[int]:
        """Return the pids of the processes of agents, the newest last."""
        found = [pid for pid, words in self._ray.list_processes() if words[-3:-1] == ["join", "-"]]
        return sorted(found, key=lambda pid: read_start_time(pid) or 0)

    def list_deaths(self) -> list[str]:
        return [event.kind for event in read_run(self._directory).events if event.kind in DEATHS]

    def read_events(self) -> str:
        return self._run("events", "far", "--job").stdout

    def finish(self) -> None:
        """Wait for the end of the job, and compare its bytes with those of a run on one machine."""

        def state():
            return self._run.read_job("far").state

        while state() not in ("finished", "failed"):
            step = self.read_step()
            wait_until(
                lambda step=step: self.read_step() > step or state() in ("finished", "failed"),
                f"it goes on after step {step}",
                state=self._ray.read_logs,
            )
        assert state() == "finished", read_json(self._run, "describe", "far")
        run = read_run(self._directory)
        reference = self._stage.play(f"--steps={self._steps}")
        by_step = {line.step: line.loss for line in run.ledger}
        assert [by_step[step] for step in sorted(by_step)] == [line.loss for line in reference.run.ledger]
        assert run.ledger[-1].digest == reference.run.ledger[-1].digest
        assert verify_run(run).problems == ()
        wait_until(lambda: not self.list_agents(), "no agent is left")


@pytest.fixture
def make_job(run_elastane, tmp_path, stage, ray) -> Callable[..., Job]:
    return lambda **options: Job(run_elastane, tmp_path, stage, ray, **options)


def test_a_job_grows_shrinks_and_loses_an_actor_a_raylet_and_the_driver(make_job, ray):
    job = make_job(steps=400, workers=1)
    job.scale(3)
    job.scale(2)
    # It was asked to leave: no worker has died.
    assert job.list_deaths() == []
    # The parent of an agent is its actor.
    stat = Path(f"/proc/{job.list_agents()[-1]}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    job.wait_for_steps(5)
    job.wait_for_members(2)
    (driver,) = ray.list_drivers()
    os.kill(driver, signal.SIGKILL)
    job.scale(3)
    assert driver not in ray.list_drivers()
    os.kill(ray.find_raylet(NODES[1]), signal.SIGKILL)
    job.wait_for_steps(5)
    job.finish()


def test_a_job_trains_on_while_the_head_is_away_for_a_short_time(make_job, ray):
    job = make_job(steps=600, workers=2)
    agents = job.list_agents()
    began_s = time.time()
    with ray.pause_head():
        while time.time() - began_s < SHORT_S:
            job.wait_for_steps(5)
    assert job.find_longest_pause_s(began_s) < LONGEST_PAUSE_S
    # The agents are the same, and the engine answers again.
    assert job.list_agents() == agents
    job.scale(3)
    assert set(agents) <= set(job.list_agents())
    job.finish()
    steps = job.list_steps()
    assert steps == sorted(set(steps)), "no step was made twice"


def test_a_job_resumes_from_its_checkpoint_after_ray_has_lost_its_head(make_job, ray):
    job = make_job(steps=600, workers=2)
    job.wait_for_steps(40)
    ray.signal_head(signal.SIGKILL)
    killed_s = time.monotonic()
    wait_until(lambda: not job.list_agents(), "Ray has ended all agents")
    lived_s = time.monotonic() - killed_s
    assert lived_s > SHORT_S
    wait_until(lambda: time.monotonic() - killed_s > LONG_S, "the head was away for long")
    ray.end_all()
    ray.start_all()
    wait_until(lambda: job.count_members() == 2, "it trains again", state=job.read_events)
    assert "gcs_rpc_server_reconnect_timeout_s" in job.read_events()
    job.finish()


def test_a_job_leaves_a_node_that_ray_drains(make_job, ray):
    job = make_job(steps=400, workers=3)
    ray.drain(NODES[0], 300)
    job.wait_for_members(2)
    job.finish()
    assert job.list_deaths() == []


def test_a_program_inside_ray_submits_a_job_and_follows_it_to_its_end(run_elastane, ray):
    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        environment = os.environ | {"PYTHONPATH": str(SOURCES)}
        return subprocess.run(
            (ray.python, "-c", *words), env=environment, capture_output=True, text=True, check=False
        )

    if run(NEEDED).returncode != 0:
        pytest.skip(f"the Python of Ray has no client (pip install httpx msgspec): {ray.python}")
    ended = run(SUBMISSION, ray.address, TRAINING, str(SOURCES), "--steps=60")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "finished job.submitted job.finished"
    assert read_json(run_elastane, "describe", "inside")["spec"]["elasticPolicy"]["maxReplicas"] == 2
