"""The clusters of engines: a real Slurm, begun once for all tests, and a double of Kubernetes for each."""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager

import pytest

from elastane.cluster.engines.kubernetes.engine import KubernetesEngine
from elastane.cluster.engines.kubernetes.options import KubernetesOptions
from tests.cluster.engines.api_double.cluster import SmallCluster, run_small_cluster
from tests.cluster.engines.slurm_daemons import SlurmDaemons, SlurmNotInstalled, run_slurm
from tests.cluster.processes.small_cluster import SOURCES, ElastaneCommand, open_cluster
from tests.run.processes.skipping import skip_except_in_ci
from tests.waiting import WAIT_S


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmDaemons]:
    try:
        with run_slurm() as daemons:
            yield daemons
    except SlurmNotInstalled as error:
        skip_except_in_ci(str(error))


@pytest.fixture(scope="session")
def event_loop_runner() -> Iterator[asyncio.Runner]:
    """One event loop, because engines belong to the loop in which they are first used."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def cluster() -> Iterator[SmallCluster]:
    """A cluster of Kubernetes with pods that run the sources of this tree."""
    paths = os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])
    passed = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    with run_small_cluster(passed | {"PYTHONPATH": paths}) as cluster:
        yield cluster


@pytest.fixture
def open_in_kubernetes(
    stage, tmp_path, monkeypatch, cluster
) -> Callable[[Mapping[str, str]], AbstractContextManager[ElastaneCommand]]:
    """Return a function that starts a controller with one pool, which has these options, in Kubernetes."""
    options = KubernetesOptions(
        command=stage.build_command("elastane.cli.main"),
        kubeconfig=str(cluster.kubeconfig),
        image="train:1",
        answer_s=WAIT_S,
    )
    return lambda pool: open_cluster(
        stage,
        tmp_path,
        monkeypatch,
        open_engine=lambda id_: KubernetesEngine(id_, options),
        options=pool,
        kind="kubernetes",
    )
