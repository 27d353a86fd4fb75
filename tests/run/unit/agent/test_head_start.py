"""The head start of a fork server: it is taken only if it began as the fork server would begin now."""

import os
import sys

import msgspec
import pytest

from elastane.run.agent import head_start
from elastane.run.agent.environment import build_worker_environment
from elastane.run.agent.head_start import (
    USUAL_THREADS,
    begin_head_start,
    drop_head_start,
    open_lifeline,
    take_head_start,
)
from elastane.run.nouns.spec import RunSpec
from tests.waiting import WAIT_S

WAITING = (sys.executable, "-S", "-E", "-c", "import sys; print(sys.argv[1:], flush=True); sys.stdin.read()")


@pytest.fixture
def begun():
    """The process with the head start."""
    begin_head_start(WAITING)
    begun = head_start._begun
    assert begun is not None
    yield begun
    drop_head_start()
    begun.process.kill()
    begun.process.wait(WAIT_S)
    begun.process.stdin.close()
    begun.process.stdout.close()


def test_a_fork_server_takes_the_process_that_began_ahead_and_its_lifeline_once(begun):
    lifeline, end = open_lifeline()
    process = take_head_start(begun.environment, lifeline)
    assert process is begun.process
    assert process.stdout.readline().decode().strip() == str(["--head-start", str(lifeline)])
    assert take_head_start(begun.environment, lifeline) is None
    other, other_end = open_lifeline()
    assert other != lifeline
    for descriptor in (lifeline, end, other, other_end):
        os.close(descriptor)
    assert process.poll() is None


@pytest.mark.parametrize("change", ["variable", "threads", "numerics", "relative path", "death"])
def test_a_process_that_began_otherwise_ends_and_is_not_taken(monkeypatch, tmp_path, change):
    if change == "relative path":
        monkeypatch.setenv("PYTHONPATH", f"/somewhere{os.pathsep}sources")
    begin_head_start(WAITING)
    begun, (lifeline, end) = head_start._begun, open_lifeline()
    environment = dict(begun.environment)
    match change:
        case "variable":
            environment["MKL_DYNAMIC"] = "false"
        case "threads":
            environment = build_worker_environment(os.environ, 2)
        case "numerics":
            environment = build_worker_environment(os.environ, USUAL_THREADS, "portable")
        case "relative path":
            monkeypatch.chdir(tmp_path)
        case "death":
            begun.process.kill()
            begun.process.wait(WAIT_S)
    assert take_head_start(environment, lifeline) is None
    assert begun.process.poll() is not None
    # The agent goes on with the pipe.
    os.close(end)
    assert os.read(lifeline, 1) == b""
    os.close(lifeline)


def test_another_folder_does_not_matter_to_absolute_paths(begun, monkeypatch, tmp_path):
    environment = begun.environment | {"PYTHONPATH": "/somewhere"}
    begun.environment = environment
    monkeypatch.chdir(tmp_path)
    assert begun.fits(environment)


def test_a_process_without_a_run_ends_with_its_pipes(begun):
    drop_head_start()
    assert begun.process.poll() is not None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(begun.lifeline[0])


def test_the_usual_number_of_threads_is_that_of_runs():
    fields = {field.name: field.default for field in msgspec.structs.fields(RunSpec)}
    assert fields["threads"] == USUAL_THREADS
