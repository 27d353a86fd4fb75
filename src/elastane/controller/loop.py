"""The loop: observe, plan, decide, tell the engine; again and again.

Whatever it knows is in the store, so it may end between any two of these and another one goes on.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection

from elastane.api.errors import ElastaneError
from elastane.api.observations import Observation
from elastane.api.orders import Order, StartAttempt, StopAttempt
from elastane.api.safe_text import escape_line
from elastane.controller.clock import has_elapsed
from elastane.controller.jobs.end_rules import EndRequest, check_end_rules, end_by_rule
from elastane.controller.jobs.explanation import describe_end
from elastane.controller.jobs.lifecycle import read_lifecycle
from elastane.controller.jobs.observation_record import (
    changes_the_plan,
    is_worth_storing,
    list_events,
    observe_job,
)
from elastane.controller.jobs.reconciliation import choose_order, choose_order_after_end
from elastane.controller.jobs.stored_job import StoredJob
from elastane.controller.jobs.unreadable import RELEASED, choose_kill, release_job
from elastane.controller.planner import Planner
from elastane.controller.planning import (
    PlannedChanges,
    PlanOutdated,
    Scheduler,
    carry_out_plan,
    make_cluster_plan,
)
from elastane.controller.store import events, forgetting, jobs, nodes, rows
from elastane.controller.store.database import Store, count_change
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
NODES_S = 60.0
AFTER_FAILURE_S = 5.0
TURNS_FAIL = "the latest turn of the controller's loop failed, so nothing was decided"
READ_LOG = "read the controller's log ($ELASTANE_HOME/controller.log), which says why"

logger = logging.getLogger(__name__)


class _Change(NamedTuple):
    """The change of a job by an observation.

    Args:
        job: as stored.
        after: as observed.
        end: required by its own rules; None: it goes on.
    """

    job: StoredJob
    after: StoredJob
    end: EndRequest | None


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
        self._seen: Mapping[str, Observation] = {}
        self._refused: Mapping[str, str] = {}
        self._held_up: Mapping[str, str] = {}
        self._wrong: Mapping[str, str] = {}
        self._left_out: dict[str, str] = {}
        self._planned_s = float("-inf")
        self._nodes_s = float("-inf")
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
        # A machine that slept has nodes that nobody has seen for long.
        if look or has_elapsed(self._nodes_s, NODES_S, self._clock()):
            begin_s, busy_s = time.monotonic(), time.thread_time()
            await self._observe()
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

    async def _observe(self) -> None:
        with self._store.reading() as tx:
            unsettled = jobs.list_unsettled_jobs(tx)
        self._seen = await self._engine.observe(unsettled)
        now_s = self._clock()
        with self._store.reading() as tx:
            known = jobs.find_jobs(tx, self._seen.keys())
        self._release_unreadable(known, now_s)
        if names := [one.job.name for one in self._find_changes(known, now_s)]:
            self._record_changes(names, now_s)
        if has_elapsed(self._nodes_s, NODES_S, now_s):
            with self._store.writing() as tx:
                for node in self._engine.nodes():
                    nodes.record_node(tx, node.name, node.pool, node.devices, now_s)
            # Not before: after a full disk has room again, the nodes have been observed recently.
            self._nodes_s = now_s

    def _record_changes(self, names: list[str], now_s: float) -> None:
        with self._store.writing() as tx:
            # People may have changed the jobs since they were read.
            changes = self._find_changes(jobs.find_jobs(tx, names), now_s)
            for job, after, end in changes:
                last = after if end is None else end_by_rule(after, end)
                jobs.write_job(tx, job, last, always=("observed",))
                for event in list_events(job, after):
                    events.append_event(tx, event.kind, event.message, now_s, team=job.team, job=job.name)
                if end is not None:
                    message = f"{job.name} is to end: {end.why}"
                    events.append_event(tx, "job.ending", message, now_s, team=job.team, job=job.name)
            if changes:
                count_change(tx)
        self._stale |= any(changes_the_plan(one.job, one.after) or one.end for one in changes)

    def _find_changes(self, known: Iterable[StoredJob], now_s: float) -> list[_Change]:
        """Return the changes of these jobs that are worth storing."""
        found = []
        for job in known:
            if not job.has_ended and not job.unreadable:
                seen = self._seen[job.name]
                after = observe_job(job, seen, now_s)
                end = None if after.has_ended else check_end_rules(job, seen.progress, now_s)
                if end is not None or is_worth_storing(job, after):
                    storable = self._make_storable(job, after, seen, now_s)
                    if storable is not None:
                        found.append(_Change(job, storable, end))
        return found

    def _make_storable(
        self, job: StoredJob, after: StoredJob, seen: Observation, now_s: float
    ) -> StoredJob | None:
        """Return the job after an observation; None: nothing of it can be stored.

        Engines pass on what a job says of its progress. What could not be read back is left out.
        """
        why = rows.explain_unstorable(after.observed)
        if not why:
            return after
        if self._left_out.get(job.name) != why:
            self._left_out[job.name] = why
            logger.warning("part of the observation of job %s is left out: %s", job.name, why)
        after = observe_job(job, msgspec.structs.replace(seen, progress=None), now_s)
        return None if rows.explain_unstorable(after.observed) else after

    def _release_unreadable(self, known: Iterable[StoredJob], now_s: float) -> None:
        """Free the devices of jobs whose record cannot be read and whose processes are gone."""
        gone = [
            job.name
            for job in known
            if job.unreadable and not job.has_ended and release_job(job, self._seen[job.name], now_s)
        ]
        if not gone:
            return
        with self._store.writing() as tx:
            for job in jobs.find_jobs(tx, gone):
                after = release_job(job, self._seen[job.name], now_s)
                if after is None:
                    continue
                jobs.update_job(tx, job, after, always=RELEASED)
                kind = f"job.{after.state}" if after.has_ended else "job.stopped"
                how = "has given its devices back"
                if after.has_ended:
                    how = describe_end(after.state, after.why)
                events.append_event(tx, kind, f"{job.name} {how}", now_s, team=job.team, job=job.name)
        self._stale = True

    def _forget(self, now_s: float) -> None:
        """Jobs whose time to be remembered is over, unless their engine has not heard of their end."""
        with self._store.reading() as tx:
            due_now = [job for job in forgetting.list_due_jobs(tx, now_s) if job.name not in self._seen]
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
            known = jobs.find_jobs(tx, self._seen.keys() | jobs.list_unsettled_jobs(tx))
            # The engine was not asked about jobs whose grant is new: these have no processes yet.
            seen = ((job, self._seen.get(job.name) or Observation(job=job.name)) for job in known)
            found = [(job, order) for job, sight in seen if (order := _choose_order(job, sight, now_s))]
            stops = any(isinstance(order, StopAttempt) for _, order in found)
            teams = jobs.map_teams(tx) if stops else {}
        return [self._word_order(job, order, teams) for job, order in found]

    def _word_order(self, job: StoredJob, order: Order, teams: Mapping[str, str]) -> Order:
        """Add the reason to a stop, in words for the user of the job."""
        if not isinstance(order, StopAttempt):
            return order
        return msgspec.structs.replace(
            order, why=self._scheduler.explain_stop(job.name, job.reason.stop, teams)
        )

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
