"""The engine of ``elastane run``; the only order that it carries out is a resize."""

import asyncio

import msgspec
import pytest

from elastane.cluster.engines.foreground import ForegroundEngine
from elastane.cluster.nouns.engine import KillAttempt, ResizeJob, StartAttempt, StopAttempt
from elastane.cluster.nouns.jobs import JobSpec
from elastane.run.nouns.control import Answer, AskResize, ProcessInfo
from elastane.run.nouns.rundir import RunDir

WORKERS = tuple(ProcessInfo(role="worker", pid=100 + worker, worker=worker) for worker in range(2))


class PretendLine:
    """A coordinator that does what it is asked, or does not answer."""

    def __init__(self) -> None:
        self.answer: Answer | None = Answer(ok=True, target=2, processes=WORKERS)
        self.asked = []

    async def ask(self, question, _timeout_s: float) -> Answer | None:
        self.asked.append(question)
        return self.answer


@pytest.fixture
def engine(tmp_path) -> ForegroundEngine:
    engine = ForegroundEngine("trial", RunDir(tmp_path))
    engine._line._coordinator = PretendLine()
    return engine


def observe(engine, *jobs):
    return asyncio.run(engine.observe(jobs))


def carry_out(engine, *orders):
    return asyncio.run(engine.carry_out(orders))


def test_the_run_is_present_from_the_first_observation(engine) -> None:
    seen = observe(engine, "trial")["trial"]
    assert (seen.present, seen.agent, seen.workers, seen.target) == (True, True, 2, 2)
    engine._line._coordinator.answer = None
    seen = observe(engine, "trial")["trial"]
    assert (seen.present, seen.agent, seen.workers, seen.target) == (True, True, None, None)


def test_workers_that_train_are_counted_apart_from_those_that_exist(engine) -> None:
    trains = msgspec.structs.replace(WORKERS[0], generation=3, state="member")
    engine._line._coordinator.answer = Answer(ok=True, target=2, processes=(trains, *WORKERS[1:]))
    seen = observe(engine, "trial")["trial"]
    assert (seen.workers, seen.members, seen.arrived, seen.fixed) == (2, 1, 1, False)


@pytest.mark.parametrize("how", [{"by_hand": True}, {"state": "finishing"}, {"state": "stopping"}])
def test_the_number_of_workers_can_be_fixed_by_the_run(engine, how) -> None:
    engine._line._coordinator.answer = Answer(ok=True, target=2, processes=WORKERS, **how)
    assert observe(engine, "trial")["trial"].fixed


def test_an_earlier_job_of_the_run_is_over(engine) -> None:
    seen = observe(engine, "trial", "before")["before"]
    assert not seen.present
    assert seen.outcome is not None


def test_a_resize_carries_the_limits_of_the_controller(engine) -> None:
    assert carry_out(engine, ResizeJob(job="trial", attempt=1, workers=3, limits=(1, 4))) == {}
    # The coordinator decides whether a user has set the number meanwhile.
    assert engine._line._coordinator.asked == [AskResize(workers=3, limits=(1, 4), unless_by_hand=True)]


def test_a_refusal_of_the_coordinator_is_returned(engine) -> None:
    engine._line._coordinator.answer = Answer(ok=False, why="a user has set its number of workers")
    refused = carry_out(engine, ResizeJob(job="trial", attempt=1, workers=3, limits=(1, 4)))
    assert refused == {"trial": "a user has set its number of workers"}


@pytest.mark.parametrize("order", [StopAttempt(job="trial", attempt=1), KillAttempt(job="trial", attempt=1)])
def test_a_controller_never_ends_the_run(engine, order) -> None:
    assert "only that terminal ends it" in carry_out(engine, order)["trial"]
    assert engine._line._coordinator.asked == []


def test_an_order_to_start_does_nothing(engine) -> None:
    start = StartAttempt(job="trial", attempt=1, workers=1, spec=JobSpec(name="trial", team="local"))
    assert carry_out(engine, start) == {}
    assert engine._line._coordinator.asked == []
