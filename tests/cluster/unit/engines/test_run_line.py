"""The line to a run: what a coordinator is asked for, and how many are asked at once."""

import asyncio
import json

import pytest

from elastane.cluster.engines.run_line import REQUESTS_AT_ONCE, RunLine, WorkerCounts, ask_runs, count_workers
from elastane.cluster.nouns.engine import Crossing, DrainWorker, EvictWorkers, ResizeJob, StopAttempt
from elastane.common.untrusted_data import Malformed
from elastane.run.attempts.attempt_file import write_attempt
from elastane.run.nouns.attempts import Attempt, AttemptOutcome
from elastane.run.nouns.control import (
    Answer,
    AskDrain,
    AskEvict,
    AskResize,
    AskStatus,
    AskStop,
    decode_answer,
)
from elastane.run.nouns.rundir import RunDir


class QuietLine(RunLine):
    """A line to a run with a coordinator that agrees to everything, or does not answer."""

    def __init__(self, run_dir: RunDir, answer: Answer | None) -> None:
        super().__init__(run_dir)
        self.answer = answer
        self.asked = []

    async def ask(self, question):
        self.asked.append(question)
        return self.answer


@pytest.mark.parametrize(
    ("order", "request_"),
    [
        (ResizeJob(job="j", attempt=1, workers=3, limits=(1, 4)), AskResize(workers=3, limits=(1, 4))),
        (DrainWorker(job="j", attempt=1, worker=2), AskDrain(worker=2)),
        (EvictWorkers(job="j", attempt=1), AskEvict()),
        (
            StopAttempt(job="j", attempt=1, why="It is paused."),
            AskStop(who="controller", why="It is paused."),
        ),
    ],
)
def test_an_order_reaches_the_run_as_one_request(tmp_path, order, request_) -> None:
    line = QuietLine(RunDir(tmp_path), Answer(ok=True))
    assert asyncio.run(line.carry_out(order)) == ""
    assert line.asked == [request_]


def test_an_order_without_an_answer_or_with_a_refusal_was_not_carried_out(tmp_path) -> None:
    order = EvictWorkers(job="j", attempt=1)
    silent = QuietLine(RunDir(tmp_path), None)
    assert "did not answer within 1 s" in asyncio.run(silent.carry_out(order))
    unwilling = QuietLine(RunDir(tmp_path), Answer(ok=False, why="its last step"))
    assert asyncio.run(unwilling.carry_out(order)) == "its last step"


def test_an_outcome_is_that_of_the_attempt_that_was_asked_about(tmp_path) -> None:
    line = RunLine(RunDir(tmp_path))
    assert line.read_outcome(1) is None
    attempt = Attempt(number=2, pid=1, started=1, began_s=0.0, outcome=AttemptOutcome(code=0, why="made"))
    write_attempt(line.run_dir, attempt)
    assert line.read_outcome(1) is None
    assert line.read_outcome(2) == attempt.outcome
    line.run_dir.attempt.write_bytes(b"{")
    # A job can write anything there.
    assert line.read_outcome(2) == attempt.outcome


def test_a_run_without_files_has_made_no_step(tmp_path) -> None:
    seen = RunLine(RunDir(tmp_path / "none")).observe("j", WorkerCounts(workers=2, target=3, ending=True))
    assert (seen.job, seen.workers, seen.members, seen.target, seen.fixed) == ("j", 2, None, 3, True)
    assert seen.progress is not None
    assert seen.progress.step == 0


class CountedLine(RunLine):
    """A line that counts how many are asked at once."""

    at_once = most = 0

    async def ask(self, question):
        assert question == AskStatus()
        CountedLine.at_once += 1
        CountedLine.most = max(CountedLine.most, CountedLine.at_once)
        await asyncio.sleep(0)  # not a wait: other requests begin here
        CountedLine.at_once -= 1
        return Answer(ok=True, target=1) if self.run_dir.root.name != "job-0" else None


def test_many_runs_are_asked_in_groups_so_that_each_has_time_to_answer(tmp_path) -> None:
    """The controller needs time to decode each answer."""
    lines = {
        name: CountedLine(RunDir(tmp_path / name))
        for name in (f"job-{number}" for number in range(2 * REQUESTS_AT_ONCE))
    }
    answers = asyncio.run(ask_runs(lines))
    assert answers.keys() == lines.keys() - {"job-0"}
    assert {answer.target for answer in answers.values()} == {1}
    assert CountedLine.most == REQUESTS_AT_ONCE


def describe_worker(**fields) -> bytes:
    worker = {"role": "worker", "pid": 7, "worker": 3, "generation": 1, "sites": ["eu"], **fields}
    return json.dumps({"type": "Answer", "ok": True, "target": 1, "processes": [worker]}).encode()


def test_what_workers_have_sent_to_other_sites_is_read_from_the_answer() -> None:
    counts = count_workers(decode_answer(describe_worker(crossings={"us": 5, "kyoto": 2**62})))
    assert counts.crossings == (Crossing(3, "eu", "us", 5), Crossing(3, "eu", "kyoto", 2**62))
    assert count_workers(decode_answer(describe_worker(crossings={"us": 5}, sites=[]))).crossings == ()


@pytest.mark.parametrize("sent", [-1, 2**62 + 1, 1e300, float("nan"), float("inf"), 0.5, None, "9"])
def test_a_counter_that_cannot_be_true_makes_the_answer_unreadable(sent) -> None:
    """The run then counts as silent; no other run is affected."""
    with pytest.raises(Malformed):
        decode_answer(describe_worker(crossings={"us": sent}))
