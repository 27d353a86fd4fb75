"""An attempt without a terminal, with an agent that trains nothing: when it begins, and its files."""

import os
import sys

import msgspec
import pytest

from elastane.common import process_identity
from elastane.common.errors import BadInput
from elastane.run.attempts.__main__ import main
from elastane.run.attempts.attempt_file import read_attempt, write_attempt
from elastane.run.attempts.run_directory import claim_run_directory
from elastane.run.nouns.attempts import RETRYABLE, Attempt, AttemptOutcome
from elastane.run.nouns.control import RunOver
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import CheckpointPolicy, RunSpec
from elastane.run.observability.run_files import decode_event_line, read_lines, read_record

SPEC = RunSpec(name="j", script="/train.py", max_workers=4, checkpoints=CheckpointPolicy())


class PretendAgent:
    """An agent that writes an event and ends with the outcome of its class."""

    over = RunOver(code=0, why="all steps are made")
    target = 1
    specs: list[RunSpec]

    def __init__(self, run_dir: RunDir, spec: RunSpec, resumed=None) -> None:
        self.run_dir, self.resumed = run_dir, resumed
        type(self).specs.append(spec)

    async def run(self) -> RunOver:
        assert read_attempt(self.run_dir).pid == os.getpid()
        with self.run_dir.events.open("ab") as events:
            event = EventLine(time=1.0, kind="worker.started", who="worker 3", workers=(3,))
            events.write(msgspec.json.encode(event) + b"\n")
        if isinstance(self.over, Exception):
            raise self.over
        return self.over


@pytest.fixture
def agent(monkeypatch) -> type[PretendAgent]:
    kind = type("Agent", (PretendAgent,), {"specs": []})
    monkeypatch.setattr("elastane.run.agent.agent.Agent", kind)
    return kind


@pytest.fixture
def run_dir(tmp_path, monkeypatch) -> RunDir:
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path))
    with claim_run_directory(SPEC, None) as run_dir:
        return run_dir


@pytest.fixture
def live(run_dir, monkeypatch):
    def begin(attempt: int, workers: int = 1, limits: str = "1:4") -> int:
        options = [f"--attempt={attempt}", f"--workers={workers}", f"--limits={limits}"]
        monkeypatch.setattr(sys, "argv", ["attempts", str(run_dir.root), *options])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    return begin


def test_the_record_of_an_attempt_has_its_process_and_its_outcome(live, agent, run_dir) -> None:
    assert live(1, workers=3) == 0
    attempt = read_attempt(run_dir)
    assert (attempt.number, attempt.pid, attempt.started) == (
        1,
        os.getpid(),
        process_identity.read_start_time(os.getpid()),
    )
    assert attempt.outcome == AttemptOutcome(code=0, why="all steps are made")
    assert [spec.start for spec in agent.specs] == [3]
    assert read_record(run_dir).spec.start == 3


def test_workers_above_the_maximum_are_reduced_to_it(live, agent) -> None:
    live(1, workers=9)
    assert [spec.start for spec in agent.specs] == [4]


def test_an_attempt_has_the_limits_that_it_was_started_with(live, agent) -> None:
    live(1, workers=9, limits="6:12")
    assert [(spec.min_workers, spec.start, spec.max_workers) for spec in agent.specs] == [(6, 9, 12)]


@pytest.mark.parametrize("newest", [2, 3])
def test_an_attempt_that_has_begun_does_not_begin_again_nor_does_an_earlier_one(
    live, agent, run_dir, newest
) -> None:
    before = Attempt(number=newest, pid=1, started=1, began_s=0.0)
    write_attempt(run_dir, before)
    assert live(2) == 0
    assert agent.specs == []
    assert read_attempt(run_dir) == before


def test_an_attempt_does_not_begin_while_another_process_has_the_run(live, agent, run_dir, tmp_path) -> None:
    from elastane.run.attempts.run_directory import reclaim_run_directory

    with reclaim_run_directory(run_dir):
        assert live(1) == 0
    assert agent.specs == []
    assert read_attempt(run_dir) is None


@pytest.mark.parametrize(
    ("over", "code"),
    [
        (RunOver(code=130, why="stopped"), 130),
        (RunOver(code=1, why="worker 0 failed", traceback="ValueError"), 1),
        (RunOver(code=1, why="the coordinator died 5 times"), RETRYABLE),
        (OSError(28, "No space left on device"), RETRYABLE),
        (BadInput("train.py has changed"), 2),
        (ZeroDivisionError("ours"), RETRYABLE),
    ],
)
def test_only_failures_of_the_script_are_not_retryable(live, agent, run_dir, over, code) -> None:
    agent.over = over
    assert live(1) == code
    assert read_attempt(run_dir).outcome.code == code
    assert read_attempt(run_dir).outcome.why


def test_an_attempt_without_a_checkpoint_begins_again(live, agent, run_dir) -> None:
    agent.over = RunOver(code=130, why="stopped")
    live(1)
    agent.over = RunOver(code=0)
    assert live(2) == 0
    resumed = read_record(run_dir).resumed
    assert (resumed.checkpoint, resumed.step, resumed.first_worker) == ("", 0, 4)
    events = read_lines(run_dir.events, decode_event_line, torn_tail=False)
    assert [event.kind for event in events].count("run.resumed") == 1


def test_a_finished_run_does_not_train_again(live, agent, run_dir) -> None:
    live(1)
    write_attempt(run_dir, Attempt(number=1, pid=1, started=1, began_s=0.0))
    assert live(2) == 0
    assert len(agent.specs) == 1
    assert read_attempt(run_dir).outcome.code == 0


def test_a_damaged_attempt_file_is_reported_and_stays_as_it_is(live, agent, run_dir, capsys) -> None:
    run_dir.attempt.write_bytes(b"{")
    assert live(1) == RETRYABLE
    assert "damaged" in capsys.readouterr().out
    assert run_dir.attempt.read_bytes() == b"{"
