"""The loop of the controller: observe, plan, decide, give orders to the engine, and repeat.

All of its knowledge is in the store. So it may end between any two steps, and another loop continues.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec
from sqlalchemy import Connection

from elastane.cluster.controller.clock import has_elapsed
from elastane.cluster.controller.code_files import CodeFiles
from elastane.cluster.controller.jobs.lifecycle import read_lifecycle
from elastane.cluster.controller.jobs.reconciliation import choose_order, choose_order_after_end
from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.controller.jobs.unreadable_jobs import choose_kill
from elastane.cluster.controller.metrics.meters import Meters
from elastane.cluster.controller.observer import Observer
from elastane.cluster.controller.planner import Planner
from elastane.cluster.controller.planning import (
    PlannedChanges,
    PlanOutdated,
    Scheduler,
    carry_out_plan,
    make_cluster_plan,
)
from elastane.cluster.controller.store import claim_lists, code_rows, history, jobs
from elastane.cluster.controller.store.database import Store
from elastane.cluster.controller.store.failures import UnreadableRecord
from elastane.cluster.nouns.engine import JobEngine, Observation, Order, StartAttempt, StopAttempt
from elastane.common.errors import ElastaneError
from elastane.common.safe_text import escape_line

LOOK_S = 1.0
"""Time between two observations; longer if they would take more than a tenth of a processor."""
LONGEST_REST_S = 5.0
"""Upper bound of that time, so that deaths are noticed and free devices are used."""
GATHER_S = 0.1
"""Wait after a change, so that changes that follow are planned with it. A slow plan lengthens the wait."""
HERE_JOBS = 300
"""Up to this many jobs, planning in this process is faster than asking another process."""
OUTDATED_PLANS = 2
"""After this many outdated plans in a row, changes wait until the next plan is carried out."""
REPLAN_S = 10.0
"""Plan this often without any change: calendars, cooldowns and prices change with time."""
AFTER_FAILURE_S = 5.0
CYCLES_FAIL = "the latest cycle of the controller's loop failed, so nothing was decided"
READ_LOG = "read the controller's log ($ELASTANE_HOME/controller.log), which says why"

logger = logging.getLogger(__name__)


class Loop:
    """The loop of one cluster.

    Args:
        store: of the cluster; no other controller uses it.
        clock: seconds since 1970.
        planner: plans for many jobs in another process; None: every plan is made in this one.
        code: the archives of code that jobs bring with them; None: no job brings any.
        meters: get the durations of plans and of arrivals; None: new ones that no page shows.
    """

    def __init__(
        self,
        store: Store,
        engine: JobEngine,
        scheduler: Scheduler,
        clock: Callable[[], float] = time.time,
        *,
        planner: Planner | None = None,
        code: CodeFiles | None = None,
        meters: Meters | None = None,
    ) -> None:
        self._store = store
        self._engine = engine
        self._scheduler = scheduler
        self._clock = clock
        self._planner = planner
        self._code = code
        self._meters = Meters(clock) if meters is None else meters
        self._observer = Observer(store, engine, clock, self._meters.arrival_times.add)
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
        """Why cycles fail; empty: they succeed. It is logged when it changes."""

    # -- from other threads ------------------------------------------------------------------------------

    def wake(self) -> None:
        """Plan soon, because something has changed."""
        if self._loop is not None:
            # While the process ends, the event loop may be closed; requests are still answered.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._mark_stale)

    def close(self) -> None:
        """End after this cycle."""
        if self._loop is None:
            self._closing.set()
            return
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end)

    def _mark_stale(self) -> None:
        self._stale = True
        self._woken.set()

    def _end(self) -> None:
        self._closing.set()
        self._woken.set()

    # -- cycles ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run cycles until it is closed. A failed cycle is logged, and the next one tries again."""
        self._loop = asyncio.get_running_loop()
        try:
            self._start_planner()
            while not self._closing.is_set():
                try:
                    await self.run_cycle(look=time.monotonic() >= self._look_at_s)
                    self._record_success()
                except Exception as error:  # noqa: BLE001 - the store or the engine may be away
                    # Training continues, and the next cycle may succeed.
                    self._record_failure(error)
                await self._wait()
        finally:
            await self._engine.close()
            if self._planner is not None:
                self._planner.close()

    def _record_failure(self, error: Exception) -> None:
        known = isinstance(error, ElastaneError)
        why = str(error) if known else f"{type(error).__name__}: {error}"
        if why == self.failing:
            return
        self.failing = why
        logger.error("cycles fail, and are tried again: %s", why, exc_info=None if known else error)
        self._store.soundness.condition.report("turns", CYCLES_FAIL, READ_LOG, log=False)

    def _record_success(self) -> None:
        if self.failing:
            logger.info("cycles succeed again")
            self.failing = ""
        self._store.soundness.condition.clear("turns", log=False)

    def _start_planner(self) -> None:
        """Start a planner that will be needed, while the first cycle observes the jobs."""
        if self._planner is None:
            return
        # The first cycle reports a store that cannot be reached.
        with contextlib.suppress(ElastaneError), self._store.begin_read() as tx:
            if jobs.count_living_jobs(tx) > HERE_JOBS:
                self._planner.start()

    async def _wait(self) -> None:
        """Wait until the next observation is due, or until something has changed.

        After a change, wait a little longer, so that changes that follow are planned with it.
        """
        pause_s = AFTER_FAILURE_S if self.failing else max(0.0, self._look_at_s - time.monotonic())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), pause_s)
            await asyncio.wait_for(self._closing.wait(), max(GATHER_S, self._plan_took_s))
        self._woken.clear()

    async def run_cycle(self, *, look: bool = True) -> None:
        """Run one cycle, which may end at any part; without ``look``, by the last observation."""
        if look or self._observer.must_see_nodes():
            begin_s, busy_s = time.monotonic(), time.thread_time()
            try:
                await self._observer.observe()
            finally:
                self._stale |= self._observer.has_news
            end_s = time.monotonic()
            self._look_at_s = end_s + compute_pause_s(end_s - begin_s, time.thread_time() - busy_s)
        now_s = self._clock()
        undecided: UnreadableRecord | None = None
        if self._stale or has_elapsed(self._planned_s, REPLAN_S, now_s):
            try:
                await self._plan(now_s)
            except UnreadableRecord as error:
                # Earlier decisions are still carried out.
                undecided = error
            else:
                self._forget(now_s)
                self._planned_s = now_s
        await self._send_orders(self._choose_orders())
        if undecided is not None:
            raise undecided

    def _forget(self, now_s: float) -> None:
        """Forget the due jobs, except those that the engine still observes, unused claim lists and code."""
        with self._store.begin_read() as tx:
            due_now = [job for job in jobs.list_due_jobs(tx, now_s) if job.name not in self._observer.seen]
            unused = claim_lists.list_unused_lists(tx, now_s)
            unneeded = code_rows.list_unneeded_code(tx, now_s)
        for job in due_now:
            with self._store.begin_write() as tx:
                jobs.forget_job(tx, job, now_s)
                message = f"{job.name} is forgotten after its ttlSecondsAfterFinished; its files stay"
                history.append_event(tx, "job.forgotten", message, now_s, team=job.team)
        if unused:
            with self._store.begin_write() as tx:
                # One may have been used since.
                for run in claim_lists.list_unused_lists(tx, now_s):
                    claim_lists.forget_claim_list(tx, run)
        if unneeded and self._code is not None:
            with self._store.begin_write() as tx:
                self._code.delete_unneeded(tx, now_s)

    async def _plan(self, now_s: float) -> None:
        """Plan, and write the decisions. If the plan is outdated by then, the next cycle plans again."""
        # Changes from here on belong to the next plan.
        self._stale = False
        begin_s = time.monotonic()
        try:
            if self._outdated < OUTDATED_PLANS:
                found = await self._make_plan(now_s)
                with self._store.begin_write() as tx:
                    self._carry_out(tx, found, now_s)
            else:
                with self._store.begin_write() as tx:
                    self._carry_out(tx, await self._make_plan(now_s), now_s)
            self._outdated = 0
        except PlanOutdated:
            self._outdated += 1
            self._mark_stale()
        except BaseException:
            self._stale = True
            raise
        finally:
            self._plan_took_s = time.monotonic() - begin_s
            self._meters.plan_times.add(self._plan_took_s)

    async def _make_plan(self, now_s: float) -> PlannedChanges:
        with self._store.begin_read() as tx:
            if self._planner is None or jobs.count_living_jobs(tx) <= HERE_JOBS:
                return make_cluster_plan(tx, now_s, self._scheduler)
        return await asyncio.to_thread(self._planner.plan, now_s)

    def _carry_out(self, tx: Connection, found: PlannedChanges, now_s: float) -> None:
        self._log_unreadable(found.wrong)
        carry_out_plan(tx, found, now_s)

    def _log_unreadable(self, wrong: Mapping[str, str]) -> None:
        """Log each record that cannot be read once, not in every cycle."""
        for job, why in wrong.items():
            if self._wrong.get(job) != why:
                logger.error("the record of job %s cannot be read: %s", escape_line(job), why)
        self._wrong = wrong

    # -- orders ------------------------------------------------------------------------------------------

    def _choose_orders(self) -> list[Order]:
        now_s = self._clock()
        with self._store.begin_read() as tx:
            known = jobs.find_jobs(tx, self._observer.seen.keys() | jobs.map_unsettled_jobs(tx).keys())
            # The engine was not asked about jobs with a new grant: these have no processes yet.
            seen = ((job, self._observer.seen.get(job.name) or Observation(job=job.name)) for job in known)
            found = [(job, order) for job, sight in seen if (order := _choose_order(job, sight, now_s))]
            stops = any(isinstance(order, StopAttempt) for _, order in found)
            teams = jobs.map_teams(tx) if stops else {}
        return [_add_stop_reason(self._scheduler, job, order, teams) for job, order in found]

    async def _send_orders(self, orders: Iterable[Order]) -> None:
        sent = list(orders)
        refused = await self._engine.carry_out(sent)
        # Some of these texts come from the coordinator of a job.
        refused = {job: escape_line(why) for job, why in refused.items()}
        for job, why in refused.items():
            logger.info("%s: not done now: %s", job, why)
        starts = {order.job for order in sent if isinstance(order, StartAttempt)}
        self._report_held_up_starts({job: why for job, why in refused.items() if job in starts})

    def _report_held_up_starts(self, refused: Mapping[str, str]) -> None:
        """Write an event for each start that was refused twice in a row, once for each reason.

        A full disk is such a reason. A start that can never succeed is refused once, because its job ends.
        """
        held_up = {job: why for job, why in refused.items() if job in self._refused}
        new = {job: why for job, why in held_up.items() if self._held_up.get(job) != why}
        if new:
            now_s = self._clock()
            with self._store.begin_write() as tx:
                for job in jobs.find_jobs(tx, new):
                    message = f"{job.name} has devices but cannot start now: {new[job.name]}"
                    history.append_event(tx, "job.held_up", message, now_s, team=job.team, job=job.name)
        self._refused, self._held_up = refused, held_up


def compute_pause_s(took_s: float, busy_s: float) -> float:
    """Return the seconds from the end of an observation to the next one.

    Args:
        took_s: duration of the observation. A busy machine or a silent coordinator makes it long; the
            observations become no rarer for that.
        busy_s: processor time of the observation.
    """
    return min(LONGEST_REST_S, max(0.0, LOOK_S - took_s, 10 * busy_s - took_s))


def _choose_order(job: StoredJob, seen: Observation, now_s: float) -> Order | None:
    if job.has_ended:
        return choose_order_after_end(job, seen, now_s)
    if job.unreadable:
        return choose_kill(job, seen)
    return choose_order(read_lifecycle(job), seen, now_s)


def _add_stop_reason(scheduler: Scheduler, job: StoredJob, order: Order, teams: Mapping[str, str]) -> Order:
    """Add the reason to a stop, in words for the user of the job."""
    if not isinstance(order, StopAttempt):
        return order
    return msgspec.structs.replace(order, why=scheduler.explain_stop(job.name, job.reason.stop, teams))
