"""A run on three machines that encrypts the connections between them trains the bytes of one worker."""

import json
import os
import signal
import subprocess
import sys

import pytest

from elastane.run.nouns.rundir import RunDir

from .machines import FIRST, Machines

pytestmark = [pytest.mark.processes, pytest.mark.long]
ELASTANE = [sys.executable, "-P", "-m", "elastane"]
OPTIONS = ("--encrypt", "--transport", "tcp")


@pytest.fixture
def machines(networks, tmp_path):
    with Machines(RunDir(tmp_path / "run"), ELASTANE, networks) as made:
        yield made


def kill_worker(machines, networks, worker):
    """Kill a worker, which is found from within the network of the run."""
    command = networks.wrap_command(0, [*ELASTANE, "ps", str(machines.run_dir.root), "--json"])
    answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    (pid,) = (row["pid"] for row in answer if row["worker"] == worker)
    os.kill(pid, signal.SIGKILL)


def test_machines_join_and_workers_die_in_an_encrypted_run(machines, networks, assert_equals_reference):
    # Gradients have 0.5 MB, so most steps renew the keys of some connections.
    machines.begin("--seconds=0.2", "--renew-bytes=300000", options=OPTIONS)
    machines.join("b", 1)
    machines.wait_for("worker.joined", "worker 100")
    machines.join("c", 2)
    machines.wait_for("worker.joined", "worker 200")
    kill_worker(machines, networks, 100)
    machines.wait_for("worker.joined", "worker 101")
    kill_worker(machines, networks, 0)
    machines.wait_for("worker.died", "worker 0")
    ended = machines.end(FIRST)
    assert_equals_reference(ended)
    assert ended.run.record.spec.encrypt
    renewed = [path.read_text().split() for path in ended.run.run_dir.root.glob("renewed-*")]
    assert sum(map(len, renewed)) > 20
    assert sorted(ended.find_subjects("worker.died")) == ["worker 0", "worker 100"]
    assert ended.find_events("node.lost") == []
