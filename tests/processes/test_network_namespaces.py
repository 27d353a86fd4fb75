"""A run on three machines with networks of their own outlives a cut link, with the bytes of one worker."""

import os
import subprocess
import sys
import time
from collections import Counter

import pytest

from elastane.api.control import RunOver
from elastane.api.rundir import RunDir
from elastane.observability.run_files import read_run

from .networks import Networks, NoNetworks
from .stage import SCRIPTS, EndedRun, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.long]
ELASTANE = [sys.executable, "-P", "-m", "elastane"]


@pytest.fixture
def networks():
    try:
        with Networks(2) as made:
            yield made
    except NoNetworks as error:
        pytest.skip(str(error))


class Machines:
    """The programs of a run on several machines."""

    def __init__(self, networks: Networks, run_dir: RunDir) -> None:
        self.networks, self.run_dir = networks, run_dir
        self._programs: list[subprocess.Popen] = []

    def start(self, machine: int, *words: str) -> subprocess.Popen:
        command = self.networks.wrap_command(machine, [*ELASTANE, *words])
        environment = os.environ | {"ELASTANE_HOME": str(self.run_dir.root.parent / "home")}
        self._programs.append(subprocess.Popen(command, env=environment))
        return self._programs[-1]

    def count_events(self) -> Counter[tuple[str, str]]:
        events = read_run(self.run_dir).events if self.run_dir.events.exists() else ()
        return Counter((event.kind, event.who) for event in events)

    def wait_for(self, kind: str, who: str, times: int = 1) -> None:
        wait_until(lambda: self.count_events()[kind, who] >= times, f"{kind} of {who}")

    def close(self) -> None:
        for program in self._programs:
            if program.poll() is None:
                program.kill()
            program.wait()


@pytest.fixture
def machines(networks, tmp_path):
    made = Machines(networks, RunDir(tmp_path / "run"))
    yield made
    made.close()


def test_a_machine_with_a_cut_link_is_lost_and_returns(machines, assert_equals_reference):
    script = [str(SCRIPTS / "training.py"), "--seconds=0.3"]
    options = [
        "--workers",
        "1:8",
        "--start",
        "2",
        "--digest-every",
        "5",
        "--run-dir",
        str(machines.run_dir.root),
    ]
    run = machines.start(0, "run", "--listen", "10.77.1.1", *options, *script)
    wait_until(machines.run_dir.endpoint.exists, "the run has begun")
    for number, name in ((1, "b"), (2, "c")):
        machines.start(number, "join", str(machines.run_dir.root), "--slots", "1", "--name", name)
    for worker in ("worker 100", "worker 200"):
        machines.wait_for("worker.joined", worker)
    machines.networks.cut(1)
    began_s = time.monotonic()
    machines.wait_for("node.lost", "node b")
    assert time.monotonic() - began_s < 30
    machines.networks.heal(1)
    machines.wait_for("node.joined", "node b", times=2)
    assert run.wait(120) == 0
    ended = EndedRun(RunOver(code=0), read_run(machines.run_dir))
    assert_equals_reference(ended)
    (lost,) = ended.find_events("node.lost")
    assert lost.workers == (100,)
    assert "worker 200" not in ended.find_subjects("worker.died")
