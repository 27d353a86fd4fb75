"""The loop dies between any two of its actions, and another one continues."""

import asyncio
from collections.abc import Callable
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from sqlalchemy import select

from elastane.cluster.controller.loop import Loop
from elastane.cluster.controller.planning import Scheduler
from elastane.cluster.controller.store import history, jobs, tables
from elastane.cluster.controller.store.database import Store
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec
from elastane.cluster.nouns.rest import ScaleRequest
from elastane.cluster.scheduler.explanations import explain_decision
from elastane.cluster.scheduler.plan import plan

from .machine import Machine, MachineEngine

DEVICES, STEPS = 4, 12
MOST_CYCLES = 120
POOL = {"name": "local", "device": "cpu", "devices": DEVICES}
RULES = {"cooldownS": 1, "minRunTimeS": 1}


class Killed(BaseException):
    """Like a SIGKILL: no code of Elastane handles it."""


@dataclass
class Moments:
    """A counter of the actions of controllers that ends them at some.

    Args:
        die_at: the number of the fatal action; 0: none.
        again: every controller dies after this number of actions.
    """

    die_at: int
    again: bool = False
    passed: int = 0
    killed: int = 0

    def one(self) -> None:
        self.passed += 1
        if self.die_at and (self.passed % self.die_at == 0 if self.again else self.passed == self.die_at):
            self.killed += 1
            raise Killed


def mortal(store, moments: Moments) -> None:
    """Let every writing transaction of this store be a moment to die, before its commit and after it."""
    begin_write = type(store).begin_write

    @contextmanager
    def begin_mortal_write():
        with begin_write(store) as tx:
            yield tx
            moments.one()
        moments.one()

    store.begin_write = begin_mortal_write


@dataclass(frozen=True)
class Wish:
    """A request of a user, and the number of its cycle."""

    cycle: int
    path: str
    body: object = None


def spec(name: str, least: int, most: int) -> JobSpec:
    policy = ElasticPolicy(min_replicas=least, max_replicas=most, graceful_shutdown_timeout_in_seconds=20)
    return JobSpec(name=name, team="vision", script="/train.py", elastic_policy=policy)


SCRIPT = (
    Wish(0, "/jobs", spec("a", 1, 4)),
    Wish(2, "/jobs", spec("b", 2, 3)),
    Wish(4, "/jobs", spec("c", 1, 2)),
    Wish(6, "/jobs/a/scale", ScaleRequest(max_replicas=2)),
    Wish(8, "/jobs/b/pause"),
    Wish(12, "/jobs/b/resume"),
    Wish(14, "/jobs/c/cancel"),
)
ENDS = {"a": "finished", "b": "finished", "c": "cancelled"}


@dataclass
class Story:
    """The scripted cluster, from its first cycle to its rest.

    Args:
        api: of the controllers, one after the other.
        moments: of these controllers.
    """

    api: object
    moments: Moments
    machine: Machine = field(default_factory=lambda: Machine(DEVICES, STEPS))
    cycles: int = 0

    def tell(self) -> None:
        operator, ada = self.api.user("operator"), self.api.user()
        assert operator.put("/pools/local", POOL).is_success
        assert operator.put("/rules", RULES).is_success
        mortal(self.api.store, self.moments)
        loop = self.begun()
        while not self.over():
            assert self.cycles < MOST_CYCLES, f"no rest after {self.cycles} cycles: {self.machine.jobs}"
            self.machine.pass_time()
            for number, wish in enumerate(SCRIPT):
                if wish.cycle == self.cycles:
                    self.ask(ada, wish, f"wish-{number}")
            try:
                asyncio.run(loop.run_cycle())
            except Killed:
                loop = self.begun()
            self.machine.check()
            self.cycles += 1
            self.api.clock.now_s += 1.0

    def begun(self) -> Loop:
        engine = MachineEngine(self.machine, self.moments.one)
        return Loop(self.api.store, engine, Scheduler(plan, explain_decision), self.api.clock)

    def ask(self, ada, wish: Wish, key: str) -> None:
        """Send a request with the same key until there is an answer."""
        while True:
            before = self.moments.killed
            try:
                answer = ada.post(wish.path, wish.body, idempotency_key=key)
            except BaseException:
                if self.moments.killed > before:
                    continue
                raise
            assert answer.is_success, answer.text
            return

    def over(self) -> bool:
        if self.cycles <= max(wish.cycle for wish in SCRIPT):
            return False
        with self.api.store.begin_read() as tx:
            return not jobs.list_planned_jobs(tx) and not self.machine.unsettled


def look(story: Story) -> None:
    """Check the final state, after any deaths."""
    machine, store = story.machine, story.api.store
    assert machine.used == 0
    for name, job in machine.jobs.items():
        assert job.begun == list(range(1, len(job.begun) + 1)), f"{name} lived {job.begun}"
    with store.begin_read() as tx:
        found = {job.name: job for job in jobs.find_jobs(tx, ENDS)}
        assert {name: job.state for name, job in found.items()} == ENDS
        for job in found.values():
            assert (job.grant.workers, job.observed.held, job.workers, job.crashes) == ({}, {}, 0, 0), job
            assert job.attempts == machine.jobs[job.name].attempt
        told = [one.kind for one in history.list_events_after(tx, 0, 10_000)]
        for kind in ("job.submitted", "job.scaled", "job.paused", "job.resumed"):
            assert told.count(kind) == sum(kind.startswith(f"job.{verb(wish)}") for wish in SCRIPT), kind
        rows = tx.execute(select(tables.usage).order_by(tables.usage.c.job, tables.usage.c.from_s)).all()
        for one, following in pairwise(rows):
            if (one.job, one.pool, one.terms) == (following.job, following.pool, following.terms):
                assert one.until_s <= following.from_s, "the same devices were charged for twice"


def verb(wish: Wish) -> str:
    return {"/jobs": "submit"}.get(wish.path, wish.path.rpartition("/")[2]).removesuffix("e")


@pytest.fixture
def told(api_over) -> Callable[..., Story]:
    def tell(store, die_at: int, *, again: bool = False) -> Story:
        story = Story(api_over(store, plan=plan, explain=explain_decision), Moments(die_at, again))
        try:
            story.tell()
            look(story)
        except AssertionError as wrong:
            raise AssertionError(f"killed at {'every' if again else 'moment'} {die_at}: {wrong}") from wrong
        return story

    return tell


def test_without_deaths_the_cluster_reaches_the_wanted_state(store, told):
    story = told(store, 0)
    assert not story.moments.killed
    assert [len(story.machine.jobs[name].begun) for name in ENDS] == [1, 2, 1]


@pytest.mark.parametrize(
    ("first", "every"), [(7, 7), *(pytest.param(first, 4, marks=pytest.mark.long) for first in range(1, 5))]
)
def test_a_controller_that_dies_at_any_moment_is_followed_by_one_that_continues(new_url, told, first, every):
    """One death per story: before a commit, after it, or after an order; at each moment, or at some."""
    die_at, killed = first - every, 1
    while killed:
        die_at += every
        with closing(Store(new_url())) as store:
            killed = told(store, die_at).moments.killed
    assert die_at > 80


@pytest.mark.parametrize("moments", [5, 7, 11, 16])
def test_many_short_lived_controllers_reach_the_wanted_state_too(store, told, moments):
    story = told(store, moments, again=True)
    assert story.moments.killed > 5
