"""A joined machine waits for the next attempt of a run as long as somebody may begin it."""

import fcntl
import threading

import msgspec
import pytest

from elastane.run.connections.endpoint import CoordinatorEndpoint
from elastane.run.machines.joining import participation
from elastane.run.machines.joining.participation import wait_for_next_attempt
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import Resumed, RunRecord, RunSpec
from tests.waiting import WAIT_S

LAST = RunRecord(spec=RunSpec(name="run", script="train.py"), created="")
NEXT = msgspec.structs.replace(LAST, resumed=Resumed("step-8", 8, 1, first_worker=3, first_term=2))


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    monkeypatch.setattr(participation, "UNLOCKED_S", 0.2)
    monkeypatch.setattr(participation, "LOOK_S", 0.01)
    run_dir = RunDir(tmp_path)
    write(run_dir.run, LAST)
    return run_dir


def write(path, value):
    path.write_bytes(msgspec.json.encode(value))


def test_the_wait_ends_when_nobody_can_resume_the_run(run_dir):
    assert wait_for_next_attempt(run_dir, LAST) is None


def test_an_attempt_has_begun_when_its_coordinator_answers(run_dir):
    write(run_dir.run, NEXT)
    write(run_dir.endpoint, CoordinatorEndpoint("127.0.0.1", 1, term=1, attempt=0))
    assert wait_for_next_attempt(run_dir, LAST) is None
    write(run_dir.endpoint, CoordinatorEndpoint("127.0.0.1", 2, attempt=1))
    assert wait_for_next_attempt(run_dir, LAST) is None
    write(run_dir.endpoint, CoordinatorEndpoint("127.0.0.1", 2, term=2, attempt=1))
    assert wait_for_next_attempt(run_dir, LAST) == NEXT


def test_the_wait_lasts_while_the_first_machine_prepares_the_attempt(run_dir):
    found = []
    waiting = threading.Thread(target=lambda: found.append(wait_for_next_attempt(run_dir, LAST)))
    with run_dir.lock.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting.start()
        waiting.join(1.0)
        assert waiting.is_alive()
        # It replaces the file in the end.
        run_dir.run.write_bytes(b"{")
        waiting.join(0.1)
        write(run_dir.run, NEXT)
        write(run_dir.endpoint, CoordinatorEndpoint("127.0.0.1", 2, term=2, attempt=1))
        waiting.join(WAIT_S)
    assert found == [NEXT]
