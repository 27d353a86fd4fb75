"""A run on three machines that encrypts the connections between them trains the bytes of one worker."""

import os
import signal
import sys

import pytest

from elastane.api.rundir import RunDir

from .machines import FIRST, Machines
from .networks import Networks, NoNetworks

pytestmark = pytest.mark.processes
ELASTANE = [sys.executable, "-P", "-m", "elastane"]
OPTIONS = ("--encrypt", "--transport", "tcp")


@pytest.fixture
def machines(tmp_path):
    try:
        with Networks(2) as networks, Machines(RunDir(tmp_path / "run"), ELASTANE, networks) as made:
            yield made
    except NoNetworks as error:
        pytest.skip(str(error))


def find_pid(machines, worker):
    return next(row.pid for row in machines.wait_for_answer().processes if row.worker == worker)


def test_machines_join_and_workers_die_in_an_encrypted_run(machines, assert_equals_reference):
    machines.begin("--seconds=0.2", options=OPTIONS)
    machines.join("b", 1)
    machines.wait_for("worker.joined", "worker 100")
    machines.join("c", 2)
    machines.wait_for("worker.joined", "worker 200")
    os.kill(find_pid(machines, 100), signal.SIGKILL)
    machines.wait_for("worker.joined", "worker 101")
    os.kill(find_pid(machines, 0), signal.SIGKILL)
    machines.wait_for("worker.died", "worker 0")
    ended = machines.end(FIRST)
    assert_equals_reference(ended)
    assert ended.run.record.spec.encrypt
    assert sorted(ended.find_subjects("worker.died")) == ["worker 0", "worker 100"]
    assert ended.find_events("node.lost") == []
