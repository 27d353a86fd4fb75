"""Follows the `ElasticJob` resources of Kubernetes: makes jobs of them, and shows there how these do.

It has a thread and an event loop of its own, so that an API server that hangs stalls nothing else.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from elastane.cluster.controller.elastic_jobs.acceptance import JobOwner, make_or_change_job
from elastane.cluster.controller.elastic_jobs.decisions import (
    Situation,
    Step,
    belongs_to_another,
    choose_step,
    make_finalizer,
)
from elastane.cluster.controller.elastic_jobs.status import (
    WrittenStatus,
    build_merge_patch,
    build_resource_status,
    must_write,
)
from elastane.cluster.controller.elastic_jobs.stored_resource import StoredElasticJob
from elastane.cluster.controller.job_changes import end_job
from elastane.cluster.controller.store import agent_rows, documents, elastic_job_rows, history, jobs
from elastane.cluster.controller.store.database import Store
from elastane.cluster.controller.store.failures import StoreError
from elastane.cluster.engines.kubernetes.elastic_jobs.client import ElasticJobClient, ResourceEvent
from elastane.cluster.engines.kubernetes.elastic_jobs.resource import ElasticJob
from elastane.cluster.engines.kubernetes.options import decode_kubernetes_options
from elastane.cluster.nouns.agents import Away
from elastane.cluster.nouns.config import Config, DeclaredEngine
from elastane.cluster.nouns.history import Event
from elastane.cluster.nouns.pools import Pool
from elastane.common.errors import ElastaneError
from elastane.common.safe_text import escape_line, fold_text

LOOK_S = 1.0
SOON_S = 0.1
"""Until the next look, after a step: the next one of the resource may follow."""
AFTER_FAILURE_S = 5.0
TRY_AGAIN_S = 30.0
"""A spec that was refused is looked at again after this time: a team may have reached a limit then."""
EVENTS_AT_ONCE = 500
MOST_EVENTS = 2000
"""Events that wait for an API server that does not answer; older ones are dropped."""
WARNINGS = ("job.held_up", "job.failed", "job.crashed", "job.unreadable")

logger = logging.getLogger(__name__)


class _Refused(NamedTuple):
    generation: int
    why: str
    again_s: float


class _Engine:
    """One engine, and all that is remembered of its resources.

    Attributes:
        written: the last statuses, by UID.
        refused: specs that were not accepted, by UID.
        events: those that have not been shown, with the job of each.
    """

    def __init__(self, document: DeclaredEngine, client: ElasticJobClient, team: str) -> None:
        self.document, self.client, self.team = document, client, team
        self.name = document.name
        self.written: dict[str, WrittenStatus] = {}
        self.refused: dict[str, _Refused] = {}
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self.complaint = ""

    @property
    def user(self) -> str:
        """The user of its jobs. No token has such a name."""
        return f"{self.name}:{self.client.namespace}"

    def forget_others(self, uids: Iterable[str]) -> None:
        """Forget all about resources that are gone."""
        there = frozenset(uids)
        for kept in (self.written, self.refused):
            for uid in kept.keys() - there:
                del kept[uid]


def open_client(document: DeclaredEngine) -> ElasticJobClient:
    """Return the client for the resources of an engine.

    Raises:
        BadInput: its options do not lead to an API server.
    """
    return ElasticJobClient(decode_kubernetes_options(document.options))


class ElasticJobFollower:
    """Follows the resources of all engines with the option ``elasticJobs``.

    All that it must know is in the store and in the resources.

    Args:
        home: directory of the controller.
        wake: called after a change of a job.
        check_team: raises `BadInput` if there is no system user for the jobs of a team.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        store: Store,
        home: Path,
        *,
        wake: Callable[[], None],
        check_team: Callable[[str], object] = str,
        clock: Callable[[], float] = time.time,
        open_client: Callable[[DeclaredEngine], ElasticJobClient] = open_client,
    ) -> None:
        self._store = store
        self._home = home
        self._wake = wake
        self._check_team = check_team
        self._clock = clock
        self._open_client = open_client
        self._engines: dict[str, _Engine] = {}
        self._unusable: dict[str, DeclaredEngine] = {}
        self._cluster = ""
        self._last_event: int | None = None
        self._closing = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failing = ""

    # -- from other threads ------------------------------------------------------------------------------

    def close(self) -> None:
        """End after this look."""
        if self._loop is None:
            self._closing.set()
            return
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._closing.set)

    # -- looks -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look until it is closed. A look that fails is logged, and the next one tries again."""
        self._loop = asyncio.get_running_loop()
        try:
            while not self._closing.is_set():
                try:
                    pause_s = SOON_S if await self.look() else LOOK_S
                    self._record_failure("")
                except Exception as error:  # noqa: BLE001 - the store may be away
                    is_known = isinstance(error, ElastaneError)
                    self._record_failure(str(error) if is_known else f"{type(error).__name__}: {error}")
                    pause_s = AFTER_FAILURE_S
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), pause_s)
        finally:
            await self.shut()

    async def shut(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(engine.client.close() for engine in self._engines.values()))

    def _record_failure(self, why: str) -> None:
        if why and why != self._failing:
            logger.error("ElasticJobs are not looked at, which is tried again: %s", why)
        elif self._failing and not why:
            logger.info("ElasticJobs are looked at again")
        self._failing = why

    async def look(self) -> bool:
        """Look at all resources, and take the next step of each; return whether any was taken."""
        with self._store.begin_read() as tx:
            # A declaration that cannot be read is left out: nothing is concluded about its engine.
            config, _ = documents.read_declared_documents(tx)
            self._cluster = self._cluster or agent_rows.find_cluster_id(tx)
            if self._last_event is None:
                self._last_event = history.find_newest_event(tx)
            new = history.list_events_after(tx, self._last_event, EVENTS_AT_ONCE)
        await self._open_engines(config)
        if not self._engines:
            self._last_event = new[-1].id if new else self._last_event
            return False
        if not self._cluster:
            with self._store.begin_write() as tx:
                self._cluster = agent_rows.get_cluster_id(tx)
        if new:
            self._last_event = new[-1].id
            for engine in self._engines.values():
                engine.events.extend(event for event in new if event.job)
        found = await asyncio.gather(
            *(self._look_at_engine(engine, config) for engine in self._engines.values())
        )
        return any(found)

    async def _open_engines(self, config: Config) -> None:
        wanted = {
            engine.name: engine
            for engine in config.engines or ()
            if engine.kind == "kubernetes" and engine.options.get("elasticJobs")
        }
        for name, engine in list(self._engines.items()):
            if wanted.get(name) != engine.document:
                del self._engines[name]
                await engine.client.close()
        for name, document in wanted.items():
            if name in self._engines or self._unusable.get(name) == document:
                continue
            try:
                client = self._open_client(document)
            except ElastaneError as error:
                self._unusable[name] = document
                logger.error("ElasticJobs of engine %s are not followed: %s", name, error)  # noqa: TRY400
                continue
            self._engines[name] = _Engine(document, client, document.options["elasticJobs"])

    async def _look_at_engine(self, engine: _Engine, config: Config) -> bool:
        resources = await engine.client.list_resources()
        if isinstance(resources, Away):
            self._complain(engine, resources.why)
            return False
        self._complain(engine, "")
        situations = self._read_situations(engine, resources)
        pools = tuple(pool for pool in config.pools or () if pool.engine == engine.name)
        taken = await asyncio.gather(
            *(self._take_step(engine, situation, pools) for situation in situations.values())
        )
        engine.forget_others(situations)
        await self._show(engine, situations.values())
        return any(taken)

    def _complain(self, engine: _Engine, why: str) -> None:
        """Log that the API server does not answer, or does again, when that changes."""
        if why and not engine.complaint:
            logger.warning(
                "ElasticJobs of engine %s are not seen, so nothing is concluded: %s",
                engine.name,
                escape_line(why),
            )
        elif engine.complaint and not why:
            logger.info("ElasticJobs of engine %s are seen again", engine.name)
        engine.complaint = why

    def _read_situations(self, engine: _Engine, resources: Mapping[str, ElasticJob]) -> dict[str, Situation]:
        """Return the situation of each resource that is shown, or that was shown here before."""
        with self._store.begin_read() as tx:
            kept = {row.uid: row for row in elastic_job_rows.list_elastic_jobs(tx)}
            mine = {uid: row for uid, row in kept.items() if row.engine == engine.name}
            known = {job.name: job for job in jobs.find_jobs(tx, [row.job for row in mine.values()])}
            busy = {agent.job for agent in agent_rows.list_living_agents(tx)}
        # One that is not shown is gone only if it was in this namespace of this API server.
        gone = {uid for uid, row in mine.items() if row.place == engine.client.place and uid not in resources}
        moved = [mine[uid] for uid in mine.keys() & resources if mine[uid].place != engine.client.place]
        if moved:
            with self._store.begin_write() as tx:
                for row in moved:
                    elastic_job_rows.write_elastic_job(
                        tx, msgspec.structs.replace(row, place=engine.client.place)
                    )
        others = kept.keys() - mine.keys()
        situations = {}
        for uid in (*(uid for uid in resources if uid not in others), *gone):
            found = mine.get(uid)
            situations[uid] = Situation(
                resource=resources.get(uid),
                kept=found,
                job=None if found is None else known.get(found.job),
                has_agents=found is not None and found.job in busy,
                finalizer=make_finalizer(self._cluster),
            )
        return situations

    # -- steps -------------------------------------------------------------------------------------------

    async def _take_step(self, engine: _Engine, situation: Situation, pools: tuple[Pool, ...]) -> bool:
        """Take the next step for a resource; return whether one was taken."""
        step, resource, kept = choose_step(situation), situation.resource, situation.kept
        match step:
            case Step.SUBMIT | Step.CHANGE if resource is not None:
                refused = engine.refused.get(resource.uid)
                if (
                    refused is not None
                    and refused.generation == resource.generation
                    and self._clock() < refused.again_s
                ):
                    return False
                self._accept(engine, resource, pools)
            case Step.CLAIM if resource is not None:
                return self._note(
                    engine,
                    await engine.client.set_finalizers(resource, (*resource.finalizers, situation.finalizer)),
                )
            case Step.RELEASE if resource is not None:
                left = tuple(name for name in resource.finalizers if name != situation.finalizer)
                return self._note(engine, await engine.client.set_finalizers(resource, left))
            case Step.REMOVE if resource is not None:
                return self._note(engine, await engine.client.remove(resource))
            case Step.CANCEL if kept is not None:
                self._cancel(engine, kept)
            case Step.FORGET if kept is not None:
                with self._store.begin_write() as tx:
                    elastic_job_rows.forget_elastic_job(tx, kept.uid)
            case _:
                return False
        return True

    def _note(self, engine: _Engine, why: str) -> bool:
        """Log why a resource could not be changed; return whether it was."""
        if why:
            logger.info("an ElasticJob of engine %s is not changed now: %s", engine.name, escape_line(why))
        return not why

    def _accept(self, engine: _Engine, resource: ElasticJob, pools: tuple[Pool, ...]) -> None:
        """Make the job of a resource, or change it, or remember why its spec is refused."""
        owner = JobOwner(
            engine=engine.name,
            place=engine.client.place,
            team=engine.team,
            user=engine.user,
            pools=pools,
            home=self._home,
            check_team=self._check_team,
        )
        try:
            with self._store.begin_write() as tx:
                make_or_change_job(tx, resource, owner, self._clock())
        except StoreError:
            raise
        except ElastaneError as error:
            why = fold_text(error.what) + (f" ({fold_text(error.do)})" if error.do else "")
            again_s = self._clock() + TRY_AGAIN_S
            engine.refused[resource.uid] = _Refused(resource.generation, why, again_s)
        else:
            engine.refused.pop(resource.uid, None)
            self._wake()

    def _cancel(self, engine: _Engine, kept: StoredElasticJob) -> None:
        with self._store.begin_write() as tx:
            job = jobs.find_job(tx, kept.job)
            if job is not None and not job.has_ended:
                end_job(tx, job, engine.user, self._clock())
        self._wake()

    # -- what people see ---------------------------------------------------------------------------------

    async def _show(self, engine: _Engine, situations: Iterable[Situation]) -> None:
        """Write the statuses that have changed, and the events that have happened."""
        shown = [
            situation
            for situation in situations
            if situation.resource is not None
            and not belongs_to_another(situation.resource, situation.finalizer)
        ]
        await asyncio.gather(*(self._show_status(engine, situation) for situation in shown))
        of_jobs = {
            situation.kept.job: situation.resource
            for situation in shown
            if situation.kept is not None and situation.resource is not None
        }
        while engine.events:
            event = engine.events[0]
            resource = of_jobs.get(event.job)
            if resource is not None:
                why = await engine.client.write_event(resource, _describe_event(event))
                if why:
                    # The status says the same; people may read events later, or never.
                    self._note(engine, why)
                    return
            engine.events.popleft()

    async def _show_status(self, engine: _Engine, situation: Situation) -> None:
        resource, now_s = situation.resource, self._clock()
        assert resource is not None, "only resources that are there are shown"
        refused = engine.refused.get(resource.uid)
        why = refused.why if refused is not None and refused.generation == resource.generation else ""
        if situation.kept is None and not why:
            return
        status = build_resource_status(resource, situation.kept, situation.job, why, now_s)
        if not must_write(resource, status, engine.written.get(resource.uid), now_s):
            return
        engine.written[resource.uid] = WrittenStatus(status, now_s)
        patch = build_merge_patch(resource.status, status)
        if not self._note(engine, await engine.client.write_status(resource, patch)):
            del engine.written[resource.uid]


def _describe_event(event: Event) -> ResourceEvent:
    _, _, words = event.kind.partition(".")
    return ResourceEvent(
        number=event.id,
        reason="".join(word.title() for word in words.split("_")),
        message=event.message,
        is_warning=event.kind in WARNINGS,
        time_s=event.time_s,
    )
