"""Jobs of a controller in a queue of Kueue: all is real, but for the API server, Kueue and the containers."""

import os
import signal

import pytest

from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.run.attempts.verification import verify_run
from elastane.run.observability.run_files import read_run
from tests.cluster.engines.api_double.cluster import DEVICE, NAMESPACE
from tests.cluster.engines.api_double.kueue import run_kueue
from tests.cluster.processes.small_cluster import count_members, submit_training
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.long]
STEPS = 80
QUEUE = "team-a"
POOL = {"resource": DEVICE, "queue": QUEUE, "growthPriorityClassName": "growth"}
GROUP = "kueue.x-k8s.io/pod-group-name"


@pytest.fixture
def kueue(cluster):
    with run_kueue(cluster, {QUEUE: 1}) as kueue:
        kueue.add_class("growth", -10)
        yield kueue


@pytest.fixture
def run_elastane(open_in_kubernetes, kueue):
    """Run a command of a controller with one pool, in Kubernetes, with a queue."""
    with open_in_kubernetes(POOL) as run:
        yield run


def list_groups(cluster) -> list[str]:
    """Return the groups of the pods that run; empty for a pod that is in none."""
    living = cluster.list_living()
    pods = [pod for pod in cluster.list_pods() if pod["metadata"]["name"] in living]
    return sorted(pod["metadata"]["labels"].get(GROUP, "") for pod in pods)


def test_a_job_begins_as_a_group_grows_is_preempted_and_trains_the_same_bytes(
    run_elastane, cluster, kueue, tmp_path, stage
):
    def wait(condition, what: str) -> None:
        wait_until(
            condition,
            what,
            state=lambda: f"{cluster.read_logs()}\n{cluster.objects.list_all('workloads')}",
        )

    submit_training(run_elastane, "far", "--workers", "2:3", args=(f"--steps={STEPS}", "--seconds=0.1"))
    wait(lambda: len(cluster.objects.list_all("workloads")) == 1, "its group waits")
    wait(lambda: "1 more needed" in run_elastane("describe", "far").output, "it says what it waits for")
    assert (cluster.list_living(), kueue.count_used(QUEUE)) == ([], 0)
    kueue.set_quota(QUEUE, 3)
    wait(lambda: count_members(run_elastane, "far") == 3, "3 workers train")
    (alone, group, same) = list_groups(cluster)
    assert (alone, group) == ("", same)
    # A member of the group dies, and another one takes its place in it.
    member = next(
        pod["metadata"]["name"] for pod in cluster.list_pods() if GROUP in pod["metadata"]["labels"]
    )
    process = cluster.nodes.find_process(member, NAMESPACE)
    os.killpg(process.pid, signal.SIGKILL)
    wait(lambda: member not in cluster.list_living(), "its end is seen")
    wait(lambda: list_groups(cluster) == ["", group, group], "it is replaced in its group")
    # A pod of other people needs a device: the worker beyond the fewest goes.
    other = {
        "metadata": {"name": "other", "labels": {"kueue.x-k8s.io/queue-name": QUEUE}},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "other",
                    "command": ["/bin/sleep", "1000"],
                    "resources": {"requests": {DEVICE: "1"}},
                }
            ]
        },
    }
    cluster.objects.create("pods", NAMESPACE, other)
    wait(lambda: "other" in cluster.list_living(), "the other pod has its device")
    assert list_groups(cluster) == ["", group, group]
    wait(lambda: run_elastane.read_job("far").state == "finished", "it has finished")
    run = read_run(EngineDirectories(tmp_path / "home").get_run_dir("far"))
    reference = stage.play(f"--steps={STEPS}")
    assert [line.loss for line in run.ledger] == [line.loss for line in reference.run.ledger]
    assert run.ledger[-1].digest == reference.run.ledger[-1].digest
    assert verify_run(run).problems == ()
    wait(lambda: kueue.count_used(QUEUE) == 1, "its quota is free")
    assert cluster.list_living() == ["other"]
    cluster.delete("other", gracePeriodSeconds=0)
