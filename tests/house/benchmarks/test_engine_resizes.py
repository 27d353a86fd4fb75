"""The resizes of a job are measured through a controller, whichever engine has its agents.

``ELASTANE_RESIZES=20 pytest -s -k slurm`` measures what the workers of a job under a real Slurm feel of 20
growths and shrinks; the other engines have their names too, and ``here`` is the controller's own machine.
"""

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import machine
import pytest
from engine_resizes import build_spec, measure_resizes

from elastane.cluster.client.context import connect
from elastane.cluster.client.job_handle import JobHandle
from elastane.cluster.engines.kubernetes.engine import KubernetesEngine
from elastane.cluster.engines.kubernetes.options import KubernetesOptions
from elastane.cluster.engines.ray.engine import RayEngine
from elastane.cluster.engines.ray.options import RayOptions
from elastane.cluster.engines.slurm.engine import SlurmEngine
from elastane.cluster.engines.slurm.options import SlurmOptions
from elastane.cluster.nouns.job_records import ENDED
from tests.cluster.engines.api_double.cluster import DEVICE, run_small_cluster
from tests.cluster.engines.ray_daemons import open_ray
from tests.cluster.engines.slurm_daemons import SlurmNotInstalled, check_installed, run_slurm
from tests.cluster.processes.process_engine import AgentProcesses, ProcessEngine
from tests.cluster.processes.small_cluster import SOURCES, open_cluster
from tests.run.processes.skipping import skip_except_in_ci
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(900)]
REPETITIONS = int(os.environ.get("ELASTANE_RESIZES", "1"))
PATHS = os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])
SETUP = f"export PYTHONPATH={shlex.quote(PATHS)}"


@contextmanager
def open_here(command: tuple[str, ...], folder: Path) -> Iterator[dict[str, object]]:
    yield {}


@contextmanager
def open_processes(command: tuple[str, ...], folder: Path) -> Iterator[dict[str, object]]:
    agents = AgentProcesses(command, folder / "agents")
    try:
        yield {"open_engine": lambda cluster: ProcessEngine(agents, cluster)}
        assert len(agents.agents) == 1 + REPETITIONS
    finally:
        agents.end()


@contextmanager
def open_slurm(command: tuple[str, ...], folder: Path) -> Iterator[dict[str, object]]:
    try:
        check_installed()
    except SlurmNotInstalled as error:
        skip_except_in_ci(str(error))
    with run_slurm() as slurm:
        options = SlurmOptions(command=command, conf=str(slurm.conf), answer_s=WAIT_S, setup=SETUP)
        pool = {"partition": "main", "gres": "gpu", "cpusPerDevice": "1"}
        yield {"open_engine": lambda cluster: SlurmEngine(cluster, options), "options": pool}


@contextmanager
def open_kubernetes(command: tuple[str, ...], folder: Path) -> Iterator[dict[str, object]]:
    passed = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    with run_small_cluster(passed | {"PYTHONPATH": PATHS}) as cluster:
        options = KubernetesOptions(
            command=command, kubeconfig=str(cluster.kubeconfig), image="train:1", answer_s=WAIT_S
        )
        yield {
            "open_engine": lambda id_: KubernetesEngine(id_, options),
            "options": {"resource": DEVICE},
            "kind": "kubernetes",
        }


@contextmanager
def open_real_ray(command: tuple[str, ...], folder: Path) -> Iterator[dict[str, object]]:
    with open_ray() as ray:
        options = RayOptions(
            address=ray.address, python=ray.python, command=command, setup=SETUP, answer_s=8.0
        )
        yield {
            "open_engine": lambda cluster: RayEngine(cluster, options),
            "options": {"cpusPerDevice": "1"},
            "kind": "ray",
        }


@pytest.mark.parametrize(
    "open_site",
    [
        pytest.param(open_here, id="here"),
        pytest.param(open_processes, id="processes"),
        pytest.param(open_slurm, id="slurm"),
        pytest.param(open_kubernetes, id="kubernetes"),
        pytest.param(open_real_ray, id="ray", marks=pytest.mark.alone),
    ],
)
def test_what_workers_feel_of_a_resize_is_measured(stage, tmp_path, monkeypatch, capsys, open_site):
    # A measurement must not begin with the modules that the tests have loaded.
    command = stage.build_command("elastane.cli.main", warm=REPETITIONS == 1)
    with (
        open_site(command, tmp_path) as site,
        open_cluster(stage, tmp_path, monkeypatch, **site),
        connect() as cluster,
    ):
        spec = build_spec("cpu", "default")
        cluster.jobs.submit(spec, key=spec.name)
        results = measure_resizes(JobHandle(cluster, spec.name), REPETITIONS)
        assert cluster.jobs.get(spec.name).state in ENDED
    if REPETITIONS > 1:
        with capsys.disabled():
            sys.stdout.write(f"\n{json.dumps({'machine': machine.describe(), **results}, indent=1)}\n")
    counts = {name: row["n"] for name, row in results["seconds"].items()}
    assert counts == {"grow": REPETITIONS, "shrink": REPETITIONS}
    for name in ("grow", "shrink"):
        felt = results[f"felt by the healthy, {name}"]
        assert felt["slowest step over a usual one"]["p50"] > 0
        assert felt["the same, calm"]["p50"] > 0
