"""The loop: observe, plan, decide, tell the engine; again and again.

Whatever it knows is in the store, so it may end between any two of these and another one goes on.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec
from sqlalchemy import Connection

from elastane.api.errors import ElastaneError
from elastane.api.observations import Observation
from elastane.api.orders import Order, StartAttempt, StopAttempt
from elastane.api.safe_text import escape_line
from elastane.controller.clock import has_elapsed
from elastane.controller.jobs.lifecycle import read_lifecycle
from elastane.controller.jobs.reconciliation import choose_order, choose_order_after_end
from elastane.controller.jobs.stored_job import StoredJob
from elastane.controller.jobs.unreadable import choose_kill
from elastane.controller.observer import Observer
from elastane.controller.planner import Planner
from elastane.controller.planning import (
    PlannedChanges,
    PlanOutdated,
    Scheduler,
    carry_out_plan,
    make_cluster_plan,
)
from elastane.controller.store import events, forgetting, jobs
from elastane.controller.store.database import Store
from elastane.controller.store.failures import UnreadableRecord
from elastane.engines.engine import Engine

LOOK_S = 1.0
"""Between two looks at the jobs; longer where they would take more than a tenth of a processor."""
LONGEST_REST_S = 5.0
"""However dear a look is: deaths are noticed, and what became free is used."""
GATHER_S = 0.1
"""After a change, others may follow at once; they are planned together. Longer where a plan takes longer."""
HERE_JOBS = 300
"""So many are planned sooner in this process than another one is asked."""
OUTDATED_PLANS = 2
"""After so many in a row that somebody was quicker than, those who change something wait for the next."""
REPLAN_S = 10.0
"""Time alone changes what a plan says: calendars, cooldowns, prices."""
AFTER_FAILURE_S = 5.0
TURNS_FAIL = "the latest turn of the controller's loop failed, so nothing was decided"
READ_LOG = "read the controller's log ($ELASTANE_HOME/controller.log), which says why"

logger = logging.getLogger(__name__)


class Loop:
    """Turns of a cluster, one after the other.

    Args:
        store: of which this is the only controller.
        engine: for all of its jobs.
        scheduler: that decides.
        clock: seconds since 1970.
        planner: plans for many jobs; None: that is done here too.
    """

    def __init__(
        self,
        store: Store,
        engine: Engine,
        scheduler: Scheduler,
        clock: Callable[[], float] = time.time,
        *,
        planner: Planner | None = None,
    ) -> None:
        self._store = store
        self._engine = engine
        self._scheduler = scheduler
        self._clock = clock
        self._planner = planner
        self._observer = Observer(store, engine, clock)
        self._refused: Mapping[str, str] = {}
        self._held_up: Mapping[str, str] = {}
        self._wrong: Mapping[str, str] = {}
        self._planned_s = float("-inf")
        self._stale = True
        self._outdated = 0
        self._plan_took_s = 0.0
        self._look_at_s = 0.0
        self._woken = asyncio.Event()
        self._closing = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.failing = ""
        """Why turns fail; empty: they do not. Logged when it changes."""

    # -- from other threads ------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something has changed."""
        if self._loop is not None:
            # Whoever asks while the process ends is answered all the same.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._awaken)

    def close(self) -> None:
        """End after this turn."""
        if self._loop is None:
            self._closing.set()
            return
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end)

    def _awaken(self) -> None:
        self._stale = True
        self._woken.set()

    def _end(self) -> None:
        self._closing.set()
        self._woken.set()

    # -- turns -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Turns until it is closed. The one place where a turn's failure ends."""
        self._loop = asyncio.get_running_loop()
        try:
            self._warm()
            while not self._closing.is_set():
                try:
                    await self.turn(look=time.monotonic() >= self._look_at_s)
                    self._succeeded()
                except Exception as error:  # noqa: BLE001 - the store or the engine may be away
                    # Training goes on, and the next turn may fare better.
                    self._fail(error)
                await self._rest()
        finally:
            await self._engine.close()
            if self._planner is not None:
                self._planner.close()

    def _fail(self, error: Exception) -> None:
        known = isinstance(error, ElastaneError)
        why = str(error) if known else f"{type(error).__name__}: {error}"
        if why == self.failing:
            return
        self.failing = why
        logger.error("turns fail, and are tried again: %s", why, exc_info=None if known else error)
        self._store.soundness.condition.report("turns", TURNS_FAIL, READ_LOG, log=False)

    def _succeeded(self) -> None:
        if self.failing:
            logger.info("turns succeed again")
            self.failing = ""
        self._store.soundness.condition.clear("turns", log=False)

    def _warm(self) -> None:
        """A planner that will be needed starts while the jobs are looked at for the first time."""
        if self._planner is None:
            return
        # A store that is away is the first turn's to tell.
        with contextlib.suppress(ElastaneError), self._store.reading() as tx:
            if jobs.count_living_jobs(tx) > HERE_JOBS:
                self._planner.start()

    async def _rest(self) -> None:
        """Until it is time to look again, or something has changed and the last plan is over long enough."""
        pause_s = AFTER_FAILURE_S if self.failing else max(0.0, self._look_at_s - time.monotonic())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), pause_s)
            await asyncio.wait_for(self._closing.wait(), max(GATHER_S, self._plan_took_s))
        self._woken.clear()

    async def turn(self, *, look: bool = True) -> None:
        """One turn; every part may be the last.

        Args:
            look: at what there is; else what was seen last still holds.
        """
        if look or self._observer.must_see_nodes():
            begin_s, busy_s = time.monotonic(), time.thread_time()
            try:
                await self._observer.observe()
            finally:
                self._stale |= self._observer.has_news
            end_s = time.monotonic()
            self._look_at_s = end_s + resting_s(end_s - begin_s, time.thread_time() - busy_s)
        now_s = self._clock()
        undecided: UnreadableRecord | None = None
        if self._stale or has_elapsed(self._planned_s, REPLAN_S, now_s):
            try:
                await self._plan(now_s)
            except UnreadableRecord as error:
                # What was decided before is carried out all the same.
                undecided = error
            else:
                self._forget(now_s)
                self._planned_s = now_s
        await self._tell(self._choose_orders())
        if undecided is not None:
            raise undecided

    def _forget(self, now_s: float) -> None:
        """Jobs whose time to be remembered is over, unless their engine has not heard of their end."""
        with self._store.reading() as tx:
            due_now = [
                job for job in forgetting.list_due_jobs(tx, now_s) if job.name not in self._observer.seen
            ]
        for job in due_now:
            with self._store.writing() as tx:
                forgetting.forget_job(tx, job, now_s)
                message = f"{job.name} is forgotten, as its ttlSecondsAfterFinished says; its files stay"
                events.append_event(tx, "job.forgotten", message, now_s, team=job.team)

    async def _plan(self, now_s: float) -> None:
        """Decides, or finds that somebody was quicker: then the next turn does."""
        # What changes from here on is for the next plan.
        self._stale = False
        begin_s = time.monotonic()
        try:
            if self._outdated < OUTDATED_PLANS:
                found = await self._planned(now_s)
                with self._store.writing() as tx:
                    self._carry_out(tx, found, now_s)
            else:
                with self._store.writing() as tx:
                    self._carry_out(tx, await self._planned(now_s), now_s)
            self._outdated = 0
        except PlanOutdated:
            self._outdated += 1
            self._awaken()
        except BaseException:
            self._stale = True
            raise
        finally:
            self._plan_took_s = time.monotonic() - begin_s

    async def _planned(self, now_s: float) -> PlannedChanges:
        with self._store.reading() as tx:
            if self._planner is None or jobs.count_living_jobs(tx) <= HERE_JOBS:
                return make_cluster_plan(tx, now_s, self._scheduler)
        return await asyncio.to_thread(self._planner.plan, now_s)

    def _carry_out(self, tx: Connection, found: PlannedChanges, now_s: float) -> None:
        self._log_unreadable(found.wrong)
        carry_out_plan(tx, found, now_s)

    def _log_unreadable(self, wrong: Mapping[str, str]) -> None:
        """Of records that cannot be read: once each, not at every turn."""
        for job, why in wrong.items():
            if self._wrong.get(job) != why:
                logger.error("the record of job %s cannot be read: %s", escape_line(job), why)
        self._wrong = wrong

    # -- orders ------------------------------------------------------------------------------------------

    def _choose_orders(self) -> list[Order]:
        now_s = self._clock()
        with self._store.reading() as tx:
            known = jobs.find_jobs(tx, self._observer.seen.keys() | jobs.list_unsettled_jobs(tx))
            # The engine was not asked about jobs whose grant is new: these have no processes yet.
            seen = ((job, self._observer.seen.get(job.name) or Observation(job=job.name)) for job in known)
            found = [(job, order) for job, sight in seen if (order := _choose_order(job, sight, now_s))]
            stops = any(isinstance(order, StopAttempt) for _, order in found)
            teams = jobs.map_teams(tx) if stops else {}
        return [_word_order(self._scheduler, job, order, teams) for job, order in found]

    async def _tell(self, orders: Iterable[Order]) -> None:
        told_now = list(orders)
        refused = await self._engine.carry_out(told_now) if told_now else {}
        # Some of these words are those of a job's coordinator.
        refused = {job: escape_line(why) for job, why in refused.items()}
        for job, why in refused.items():
            logger.info("%s: not done now: %s", job, why)
        starts = {order.job for order in told_now if isinstance(order, StartAttempt)}
        self._tell_who_is_held_up({job: why for job, why in refused.items() if job in starts})

    def _tell_who_is_held_up(self, refused: Mapping[str, str]) -> None:
        """Of starts that are refused again and again (a full disk), once for each reason.

        A start that can never be is refused once: its job ends.
        """
        held_up = {job: why for job, why in refused.items() if job in self._refused}
        new = {job: why for job, why in held_up.items() if self._held_up.get(job) != why}
        if new:
            now_s = self._clock()
            with self._store.writing() as tx:
                for job in jobs.find_jobs(tx, new):
                    message = f"{job.name} has its devices and cannot begin now: {new[job.name]}"
                    events.append_event(tx, "job.held_up", message, now_s, team=job.team, job=job.name)
        self._refused, self._held_up = refused, held_up


def resting_s(took_s: float, busy_s: float) -> float:
    """Seconds from the end of a look at the jobs to the next one.

    Args:
        took_s: the look, on the clock. A machine that is busy with others, or a coordinator that does not
            answer, makes it long, and is no reason to look less often.
        busy_s: of it, on a processor.
    """
    return min(LONGEST_REST_S, max(0.0, LOOK_S - took_s, 10 * busy_s - took_s))


def _choose_order(job: StoredJob, seen: Observation, now_s: float) -> Order | None:
    if job.has_ended:
        return choose_order_after_end(job, seen, now_s)
    if job.unreadable:
        return choose_kill(job, seen)
    return choose_order(read_lifecycle(job), seen, now_s)


def _word_order(scheduler: Scheduler, job: StoredJob, order: Order, teams: Mapping[str, str]) -> Order:
    """Add the reason to a stop, in words for the user of the job."""
    if not isinstance(order, StopAttempt):
        return order
    return msgspec.structs.replace(order, why=scheduler.explain_stop(job.name, job.reason.stop, teams))
