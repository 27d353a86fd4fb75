"""Jobs of a controller under a real Slurm: all is real, from the command line to the bytes."""

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from elastane.cluster.engines.slurm.engine import SlurmEngine
from elastane.cluster.engines.slurm.options import SlurmOptions
from tests.cluster.engines.job_contract import JobContract
from tests.cluster.engines.slurm_daemons import SlurmDaemons
from tests.cluster.processes.small_cluster import SOURCES, open_cluster
from tests.waiting import WAIT_S

pytestmark = pytest.mark.processes
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


class SlurmJobSite:
    """A `JobSite`: the parts of its job are jobs of Slurm, which a user cancels.

    Slurm signals every process of a cancelled job, and no worker dies from that.
    """

    notifies = True

    def __init__(self, run_elastane: Callable, home: Path, slurm: SlurmDaemons) -> None:
        self.run_elastane, self.home, self._slurm = run_elastane, home, slurm
        self.read_logs = slurm.read_outputs

    def list_parts(self) -> list[str]:
        return self._slurm.run("squeue", "-h", "-t", "RUNNING", "-o", "%i", "-S", "i").split()

    def take_away(self, part: str) -> None:
        self._slurm.run("scancel", part)


@pytest.mark.parametrize("home_option", ["shared", pytest.param("own", marks=pytest.mark.long)])
class TestJobsUnderSlurm(JobContract):
    """The contract of all engines."""

    @pytest.fixture
    def site(self, run_elastane, tmp_path, slurm) -> SlurmJobSite:
        return SlurmJobSite(run_elastane, tmp_path / "home", slurm)
