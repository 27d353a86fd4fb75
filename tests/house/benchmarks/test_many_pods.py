"""What a controller costs with many jobs on many nodes of Kubernetes, and how often it reads whole lists.

``ELASTANE_NODES=1000 ELASTANE_JOBS=500 ELASTANE_SECONDS=30 pytest -s`` is the size of a large cluster. The
nodes of the double start no processes: their pods run at once, and `controller_scale` answers for the runs.
"""

import base64
import itertools
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version

import pytest
from controller_scale import Cores, raise_file_limit, run_agents, start_controller

from elastane.cluster.client.cluster import Cluster
from elastane.cluster.controller.cluster.declarations import diff_configs
from elastane.cluster.controller.jobs.requests import create_job
from elastane.cluster.controller.store import documents, jobs
from elastane.cluster.controller.store.database import Store
from elastane.cluster.nouns.arrivals import Arrival, Begin, Instruction
from elastane.cluster.nouns.config import Config, DeclaredEngine, Team
from elastane.cluster.nouns.controller import ControllerSettings
from elastane.cluster.nouns.job_tickets import decode_job_ticket, encode_credentials
from elastane.cluster.nouns.jobs import JobSpec, WorkerResources
from elastane.cluster.nouns.pools import Pool
from elastane.common.connections.controller_connection import ControllerConnection, trust_certificate
from tests.cluster.engines.api_double.cluster import DEVICE, NAMESPACE, SmallCluster, run_small_cluster
from tests.cluster.engines.api_double.nodes import Nodes
from tests.cluster.engines.api_double.objects import ApiError, Document
from tests.waiting import WAIT_S, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(900)]
NODES, JOBS = (int(os.environ.get(f"ELASTANE_{what}", "20")) for what in ("NODES", "JOBS"))
MEASURED_S = float(os.environ.get("ELASTANE_SECONDS", "5"))
MOST_CORES = 1.0
CHANGES_PER_S = 10
"""Of nodes, as their kubelets report them."""


class IdleNodes(Nodes):
    """Nodes on which pods run without a process, one on each."""

    def __init__(self, *words: object) -> None:
        super().__init__(*words)
        self._numbers = itertools.count()

    def _schedule(self, pod: Document) -> None:
        place = {"spec": {"nodeName": f"n{next(self._numbers) % NODES}"}}
        self.objects.patch("pods", pod["metadata"]["namespace"], pod["metadata"]["name"], place)

    def _begin(self, pod: Document) -> None:
        if pod.get("status", {}).get("phase") != "Running":
            self._set_status(pod, "Running", {"running": {}})


@pytest.fixture
def cluster() -> Iterator[SmallCluster]:
    with run_small_cluster(names=[f"n{number}" for number in range(NODES)], kind=IdleNodes) as cluster:
        yield cluster


def fill_store(store: Store, cluster: SmallCluster) -> None:
    """Declare the engine, and store jobs of one worker each."""
    options = {"kubeconfig": str(cluster.kubeconfig), "image": "train:1", "answer": "30s"}
    config = Config(
        engines=(DeclaredEngine(name="east", kind="kubernetes", options=options),),
        pools=(
            Pool(name="gpus", device="h100", devices=JOBS, engine="east", options={"resource": DEVICE}),
            Pool(name="local", device="cpu", devices=1),
        ),
        teams=(Team(name="vision"),),
    )
    with store.begin_write() as tx:
        changes = diff_configs(documents.read_declared_config(tx), config)
        documents.write_documents(tx, changes, time.time())
        for number in range(JOBS):
            spec = JobSpec(
                name=f"job-{number}",
                team="vision",
                script="/nowhere/train.py",
                resources_per_worker=WorkerResources(kinds=("h100",)),
            )
            jobs.insert_job(tx, create_job(spec, "ada", time.time()))


def find_secret(cluster: SmallCluster, pod: str) -> Document | None:
    with suppress(ApiError):
        return cluster.objects.get("secrets", NAMESPACE, pod)
    return None


def arrive(url: str, cluster: SmallCluster, pod: str) -> str:
    """Let the agent of a pod arrive, and return the job that it begins."""
    # The engine makes it after the pod, which owns it.
    secret = wait_until(lambda: find_secret(cluster, pod), f"pod {pod} has its secret")
    ticket = decode_job_ticket(base64.b64decode(secret["data"]["ticket"]).decode())
    trust = trust_certificate(url, ticket.certificate)
    with ControllerConnection(
        url, encode_credentials(ticket.key), verify=trust, timeout_s=WAIT_S
    ) as controller:
        arrival = Arrival(host=pod, version=version("elastane"), process=pod)
        told = controller.request("POST", f"/agents/{ticket.agent}/arrival", Instruction, body=arrival)
    assert isinstance(told, Begin), told
    return told.spec.name


@contextmanager
def train(home: str, names: list[str]) -> Iterator[None]:
    """Answer for the runs of jobs."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=run_agents, args=(home, names, theirs), daemon=True)
    process.start()
    try:
        mine.recv()
        yield
    finally:
        process.kill()
        process.join()


def let_time_pass(cluster: SmallCluster, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    for number in itertools.count():
        beat = {"metadata": {"annotations": {"beat": str(number)}}}
        cluster.objects.patch("nodes", "", f"n{number % NODES}", beat)
        time.sleep(1 / CHANGES_PER_S)  # not a wait: paces the changes
        if time.monotonic() > until_s:
            return


def count_lists(cluster: SmallCluster) -> Counter[str]:
    """Return how many pages were listed of each resource."""
    return Counter(
        {resource: pages for (verb, resource), pages in cluster.api.requests.items() if verb == "list"}
    )


def list_training(client: Cluster) -> list[str]:
    return sorted(job.name for job in client.jobs.list(states=("running",)) if job.step)


def test_a_controller_with_many_pods_is_cheap_and_lists_only_at_its_start_and_after_410(
    cluster, tmp_path, capsys
):
    raise_file_limit()
    url = f"sqlite:///{tmp_path}/store.db"
    store = Store(url)
    fill_store(store, cluster)
    store.close()
    home = tmp_path / "home"
    settings = ControllerSettings(home=str(home), store=url, devices=1, user="ada", new_token=True)
    with start_controller(settings, tmp_path / "controller.log") as (pid, ready):
        wait_until(lambda: len(cluster.list_living()) == JOBS, "all pods run", state=cluster.read_logs)
        names = [arrive(ready.url, cluster, pod) for pod in cluster.list_living()]
        with train(str(home), names), Cluster(ready.url, ready.token) as client:
            wait_until(lambda: list_training(client) == sorted(names), "all jobs train")
            let_time_pass(cluster, MEASURED_S / 2)
            at_start = count_lists(cluster)
            cores = Cores(pid)
            let_time_pass(cluster, MEASURED_S)
            used = cores.read()
            assert count_lists(cluster) == at_start
            cluster.api.stop()
            cluster.objects.compact()
            cluster.api.start()
            wait_until(lambda: count_lists(cluster) - at_start == at_start, "it lists all once more")
            wait_until(lambda: not client.health().problems, "the engine answers again")
            let_time_pass(cluster, MEASURED_S / 2)
            assert count_lists(cluster) - at_start == at_start
            assert len(cluster.list_living()) == JOBS
    found = {"nodes": NODES, "jobs": JOBS, "cores": used, "pages at start, and after 410": at_start}
    with capsys.disabled():
        sys.stdout.write(f"\n{json.dumps(found)}\n")
    assert used <= MOST_CORES
