"""Jobs of a controller under Kubernetes: all is real, except for the API server and the containers."""

import os
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.run.observability.run_files import read_last_step, read_run
from tests.cluster.engines.api_double.cluster import DEVICE, SmallCluster
from tests.cluster.engines.job_contract import JobContract
from tests.cluster.processes.small_cluster import (
    assert_same_bytes,
    read_json,
    submit_training,
    wait_for_members,
    wait_for_state,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.processes
STEPS = 60
AWAY_STEPS = int(float(os.environ.get("ELASTANE_AWAY_S", "4")) / 0.4)
"""How many steps are made at least while the API server is away; with two workers a step takes 0.4 s."""
LONGEST_STEP_S = 2.0
POOL = {"resource": DEVICE}


@pytest.fixture
def run_elastane(open_in_kubernetes):
    """Run a command of a controller with one pool, in Kubernetes."""
    with open_in_kubernetes(POOL) as run:
        yield run


class KubernetesJobSite:
    """A `JobSite`: the parts of its job are pods, which a user deletes, so that they get a notice."""

    notifies = True

    def __init__(self, run_elastane: Callable, home: Path, cluster: SmallCluster) -> None:
        self.run_elastane, self.home = run_elastane, home
        self.list_parts, self.take_away = cluster.list_living, cluster.delete
        self.read_logs = cluster.read_logs


class TestJobsUnderKubernetes(JobContract):
    """The contract of all engines."""

    @pytest.fixture
    def site(self, run_elastane, tmp_path, cluster) -> KubernetesJobSite:
        return KubernetesJobSite(run_elastane, tmp_path / "home", cluster)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_job_trains_on_while_the_api_server_is_away_and_a_pod_that_dies_then_is_replaced(
    run_elastane, cluster, tmp_path, stage
):
    steps = STEPS + AWAY_STEPS
    submit_training(run_elastane, "far", "--workers", "2", args=(f"--steps={steps}", "--seconds=0.1"))
    wait_for_members(run_elastane, "far", 2, cluster.read_logs)
    second = cluster.list_living()[1]
    run_dir = EngineDirectories(tmp_path / "home").get_run_dir("far")
    wait_until(lambda: read_last_step(run_dir), "a step is made", state=cluster.read_logs)
    first = read_last_step(run_dir)
    with cluster.api.silence():
        for step in range(first.step, first.step + AWAY_STEPS + 1):
            wait_until(lambda step=step: read_last_step(run_dir).step >= step, f"step {step} is made")
        times = [line.time for line in read_run(run_dir).ledger if line.step >= first.step]
        assert max(after - before for before, after in pairwise(times)) < LONGEST_STEP_S
        process = cluster.nodes.find_process(second, "training")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    wait_until(lambda: second not in cluster.list_living(), "its end is seen", state=cluster.read_logs)
    wait_for_state(run_elastane, "far", "finished", cluster.read_logs)
    assert_same_bytes(read_run(run_dir), stage.play(f"--steps={steps}").run)
    wait_until(lambda: not cluster.list_living(), "no pod runs", state=cluster.read_logs)
    assert len(cluster.nodes.starts) == 3
    assert all(starts == 1 for starts in cluster.nodes.starts.values())
    assert read_json(run_elastane, "describe", "far")["crashes"] == 0
