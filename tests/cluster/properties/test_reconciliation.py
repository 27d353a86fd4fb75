"""Attempts of a job under any order of faults in the job, its orders and the controller.

The world is a small engine: it does exactly what `elastane.cluster.nouns.engine` and
`elastane.cluster.engines` promise.
"""

from dataclasses import dataclass, field

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from elastane.cluster.controller.jobs.lifecycle import JobLifecycle, apply_observation
from elastane.cluster.controller.jobs.reconciliation import LINGER_S, choose_order
from elastane.cluster.nouns.engine import (
    EvictWorkers,
    KillAttempt,
    Observation,
    Order,
    ResizeJob,
    SettleJob,
    StartAttempt,
    StopAttempt,
)
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec, RunPolicy
from elastane.run.nouns.attempts import AttemptOutcome
from tests.cluster.job_lifecycles import cancel_lifecycle, grant_workers

SPEC = JobSpec(
    name="j",
    team="t",
    script="/train.py",
    elastic_policy=ElasticPolicy(max_replicas=8, graceful_shutdown_timeout_in_seconds=5.0),
    run_policy=RunPolicy(job_max_retry_count=3),
)
ENDS = {
    "crash": None,
    "lost": AttemptOutcome(128, "every copy of the state was lost"),
    "fail": AttemptOutcome(1, "ValueError", "Traceback"),
    "finish": AttemptOutcome(0, "all steps are made"),
}
CYCLE_S = 1.0
ENOUGH_TURNS = 700


@dataclass
class World:
    """One job on a machine."""

    attempt: int = 0
    agent: bool = False
    outcome: AttemptOutcome | None = None
    target: int = 0
    workers: int = 0
    booting: list[tuple[int, int]] = field(default_factory=list)
    answers: bool = True
    stopping: bool = False
    stuck: bool = False
    failed: int = 0
    alone_s: float = 0.0
    begun: list[int] = field(default_factory=list)

    @property
    def present(self) -> bool:
        return self.agent or self.workers > 0 or bool(self.booting)

    def seen(self) -> Observation:
        if self.failed > self.attempt and not self.present:
            return Observation(job="j", attempt=self.failed, outcome=AttemptOutcome(128, "could not begin"))
        told = self.agent and self.answers
        return Observation(
            job="j",
            attempt=self.attempt,
            present=self.present,
            agent=self.agent,
            outcome=self.outcome,
            workers=self.workers if told else None,
            target=self.target if told else None,
            lingering_s=self.alone_s,
        )

    def obey(self, order: Order | None) -> None:
        """Carry out an order, at any time."""
        mine = (
            isinstance(order, ResizeJob | EvictWorkers | StopAttempt | KillAttempt)
            and order.attempt == self.attempt
        )
        match order:
            case StartAttempt(attempt=attempt, workers=workers) if attempt > self.attempt:
                self.booting.append((attempt, workers))
            case ResizeJob(workers=workers) if mine and self.agent:
                self.target = workers
            case EvictWorkers() if mine and self.agent:
                self.workers = min(self.workers, self.target)
            case StopAttempt() if mine and self.agent:
                self.stopping = True
            case KillAttempt() if mine and self.agent:
                self.agent = False
            case KillAttempt() if mine:
                self.workers, self.booting = 0, []
            case _:
                pass

    def end(self, outcome: AttemptOutcome | None) -> None:
        if self.agent:
            self.agent, self.outcome = False, outcome
            self.workers = 0 if outcome else self.workers

    def go_on(self) -> None:
        """Let time pass."""
        if not self.agent and self.workers:
            # Stopped, or in a driver that does not answer: only SIGKILL ends it.
            self.workers -= not self.stuck
        elif not self.agent and self.booting:
            attempt, workers = self.booting.pop(0)
            if attempt > self.attempt:
                # Only one at a time can take the lock, and no number twice.
                assert self.workers == 0
                self.attempt, self.agent, self.outcome = attempt, True, None
                self.target, self.workers, self.stopping, self.stuck = workers, 0, False, False
                self.begun.append(attempt)
        elif self.agent and self.stopping:
            self.end(AttemptOutcome(130, "stopped"))
        elif self.agent:
            self.booting = []
            self.workers += 0 if self.stuck else (self.target > self.workers) - (self.target < self.workers)
        self.alone_s = self.alone_s + CYCLE_S if self.present and not self.agent else 0.0


@dataclass
class Cycles:
    """The loop of the controller, with any events between its parts."""

    lifecycle: JobLifecycle = field(default_factory=lambda: JobLifecycle(job="j", spec=SPEC))
    world: World = field(default_factory=World)
    now_s: float = 1000.0
    late: list[Order] = field(default_factory=list)

    def run_cycle(self, fate: str = "done") -> Order | None:
        self.now_s += CYCLE_S
        seen = self.world.seen()
        self.lifecycle = apply_observation(self.lifecycle, seen, self.now_s)
        order = choose_order(self.lifecycle, seen, self.now_s)
        if order is None:
            return None
        if fate in ("done", "twice"):
            self.world.obey(order)
        if fate == "twice":
            self.world.obey(order)
        if fate == "late":
            self.late.append(order)
        return order

    def happens(self, what: str, number: int) -> None:
        world = self.world
        match what:
            case "grant":
                self.lifecycle = grant_workers(self.lifecycle, number, self.now_s)
            case "cancel":
                self.lifecycle = cancel_lifecycle(self.lifecycle, self.now_s)
            case _ if what in ENDS:
                world.end(ENDS[what])
            case "silence":
                world.answers = not world.answers
            case "worker dies" if world.workers:
                world.workers -= 1
            case "stuck":
                world.stuck = not world.stuck
            case "cannot begin" if world.booting:
                world.failed = max(world.failed, world.booting.pop()[0])
            case "late" if self.late:
                world.obey(self.late.pop(number % len(self.late)))
            case _:
                pass


WEIGHTS = {"grant": 3, "worker dies": 2, "stuck": 2, "cannot begin": 1, "silence": 1, "nothing": 1}
HAPPENINGS = st.sampled_from([*(what for what, often in WEIGHTS.items() for _ in range(often)), *ENDS])
FATES = st.sampled_from(["done", "done", "lost", "twice"])
HISTORIES = st.lists(st.tuples(HAPPENINGS, st.integers(0, 8), FATES, st.integers(0, 3)), max_size=60)
LATE_FATES = st.sampled_from(["done", "lost", "twice", "late"])
LATE_HISTORIES = st.lists(
    st.tuples(st.sampled_from(["late"]) | HAPPENINGS, st.integers(0, 8), LATE_FATES, st.integers(0, 3)),
    max_size=60,
)


def played(history) -> Cycles:
    cycles = Cycles()
    for what, number, fate, passing in history:
        cycles.happens(what, number)
        cycles.run_cycle(fate)
        for _ in range(passing):
            cycles.world.go_on()
        assert len(cycles.world.begun) == len(set(cycles.world.begun))
    return cycles


def left_alone(cycles: Cycles) -> None:
    """Run cycles until there is no order and no change."""
    cycles.world.answers, cycles.world.stuck = True, cycles.world.stuck and not cycles.world.agent
    quiet = 0
    for _ in range(ENOUGH_TURNS):
        before = (cycles.lifecycle, msgspec.to_builtins(cycles.world.seen()), list(cycles.world.booting))
        order = cycles.run_cycle()
        cycles.world.go_on()
        after = (cycles.lifecycle, msgspec.to_builtins(cycles.world.seen()), list(cycles.world.booting))
        waits = cycles.lifecycle.granted > 0 and cycles.now_s < cycles.lifecycle.retry_at_s
        quiet = quiet + 1 if order in (None, SettleJob(job="j")) and before == after and not waits else 0
        if quiet > LINGER_S:
            return
    raise AssertionError(f"no rest: {cycles}")


@given(LATE_HISTORIES)
def test_a_job_finally_has_its_granted_workers(history) -> None:
    cycles = played(history)
    left_alone(cycles)
    lifecycle, world = cycles.lifecycle, cycles.world
    if lifecycle.ended is None and lifecycle.granted:
        assert world.agent
        assert world.target == world.workers == lifecycle.granted == lifecycle.uses
    else:
        assert not world.present
        assert lifecycle.uses == 0


@given(LATE_HISTORIES, st.sampled_from(["grant", "cancel"]))
def test_a_paused_or_cancelled_job_finally_holds_nothing(history, how) -> None:
    cycles = played(history)
    cycles.happens(how, 0)
    left_alone(cycles)
    assert not cycles.world.present
    assert cycles.lifecycle.uses == 0
    assert how == "grant" or cycles.lifecycle.ended is not None


@given(LATE_HISTORIES)
def test_attempts_begin_once_and_in_order(history) -> None:
    cycles = played(history)
    left_alone(cycles)
    assert cycles.world.begun == sorted(set(cycles.world.begun))


@given(HISTORIES)
def test_devices_that_count_as_free_are_free(history) -> None:
    """Except for an order that is carried out after the answer to a later one, which no engine allows."""
    cycles = Cycles()
    for what, number, fate, passing in history:
        cycles.happens(what, number)
        cycles.run_cycle(fate)
        for _ in range(passing):
            cycles.world.go_on()
            ready = [workers for attempt, workers in cycles.world.booting if attempt > cycles.world.attempt]
            assert cycles.lifecycle.uses >= max([cycles.world.workers, *ready])
            assert not cycles.world.agent or cycles.lifecycle.uses >= cycles.world.target


@given(LATE_HISTORIES)
def test_a_repeated_observation_changes_nothing(history) -> None:
    cycles = Cycles()
    for what, number, fate, passing in history:
        cycles.happens(what, number)
        seen = cycles.world.seen()
        once = apply_observation(cycles.lifecycle, seen, cycles.now_s)
        assert apply_observation(once, seen, cycles.now_s + 1) == once
        cycles.run_cycle(fate)
        for _ in range(passing):
            cycles.world.go_on()


@given(LATE_HISTORIES)
def test_crashes_are_counted_and_resizes_are_not(history) -> None:
    cycles = played(history)
    left_alone(cycles)
    assert cycles.lifecycle.crashes <= SPEC.run_policy.job_max_retry_count + 1
    if not any(what in ("crash", "lost", "cannot begin", "stuck") for what, *_ in history) and all(
        fate != "late" for *_, fate, _ in history
    ):
        assert cycles.lifecycle.crashes == 0
