"""The presence of processes, by a lock that ends with its holders."""

import os
import signal
import subprocess
import sys

import pytest

from elastane.common import process_identity
from elastane.run.agent.presence import hold_presence, is_any_process_present, list_present_processes
from elastane.run.nouns.rundir import RunDir


@pytest.fixture
def run_dir(tmp_path) -> RunDir:
    return RunDir(tmp_path)


def test_a_new_directory_has_no_present_process(run_dir) -> None:
    assert not is_any_process_present(run_dir)
    assert list_present_processes(run_dir) == ()


def test_a_child_that_inherits_the_descriptor_stays_present_after_its_parent(run_dir) -> None:
    descriptor = hold_presence(run_dir)
    try:
        with subprocess.Popen(
            [sys.executable, "-S", "-c", "input()"], stdin=-1, pass_fds=(descriptor,)
        ) as heir:
            os.close(descriptor)
            descriptor = -1
            assert is_any_process_present(run_dir)
            assert list_present_processes(run_dir) == (heir.pid,)
            heir.kill()
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    assert not is_any_process_present(run_dir)


def test_several_processes_are_present_at_once(run_dir) -> None:
    first, second = hold_presence(run_dir), hold_presence(run_dir)
    os.close(first)
    assert is_any_process_present(run_dir)
    os.close(second)
    assert not is_any_process_present(run_dir)


def test_a_process_is_known_by_its_number_and_its_start() -> None:
    start = process_identity.read_start_time(os.getpid())
    assert start is not None
    descriptor = process_identity.open_process(os.getpid(), start)
    assert descriptor is not None
    os.close(descriptor)
    assert process_identity.open_process(os.getpid(), start + 1) is None


def test_a_zombie_is_not_opened_as_a_process() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=-1) as process:
        start = process_identity.read_start_time(process.pid)
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process_identity.read_start_time(process.pid) is None
        assert process_identity.open_process(process.pid, start) is None
    assert process_identity.read_start_time(process.pid) is None
