"""Follows the `ElasticJob` resources of Kubernetes: makes jobs of them, and shows there how these do.

It has a thread and an event loop of its own, so that an API server that hangs stalls nothing else.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from elastane.cluster.controller.elastic_jobs.acceptance import JobOwner, make_or_change_job
from elastane.cluster.controller.elastic_jobs.decisions import Situation, Step, choose_step, make_finalizer
from elastane.cluster.controller.elastic_jobs.followed_engine import FollowedEngine
from elastane.cluster.controller.elastic_jobs.stored_resource import StoredElasticJob
from elastane.cluster.controller.job_changes import end_job
from elastane.cluster.controller.store import agent_rows, documents, elastic_job_rows, history, jobs
from elastane.cluster.controller.store.database import Store
from elastane.cluster.controller.store.failures import StoreError
from elastane.cluster.engines.kubernetes.elastic_jobs.client import ElasticJobClient
from elastane.cluster.engines.kubernetes.elastic_jobs.resource import ElasticJob
from elastane.cluster.engines.kubernetes.options import decode_kubernetes_options
from elastane.cluster.nouns.agents import Away
from elastane.cluster.nouns.config import Config, DeclaredEngine
from elastane.cluster.nouns.pools import Pool
from elastane.common.errors import ElastaneError
from elastane.common.safe_text import fold_text

LOOK_S = 1.0
SOON_S = 0.1
"""Until the next look, after a step: the next one of the resource may follow."""
AFTER_FAILURE_S = 5.0
EVENTS_AT_ONCE = 500
PATIENCE_S = 2.0
"""A look does not wait longer for one engine, so that none holds up another."""

logger = logging.getLogger(__name__)


def open_client(document: DeclaredEngine) -> ElasticJobClient:
    """Return the client for the resources of an engine."""
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
        self._engines: dict[str, FollowedEngine] = {}
        self._looks: dict[str, asyncio.Task[bool]] = {}
        self._unusable: dict[str, str] = {}
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
                except StoreError:
                    # The monitor of the store reports it.
                    pause_s = AFTER_FAILURE_S
                except Exception as error:  # noqa: BLE001 - an engine may fail in a way that is not known
                    is_known = isinstance(error, ElastaneError)
                    self._record_failure(str(error) if is_known else f"{type(error).__name__}: {error}")
                    pause_s = AFTER_FAILURE_S
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), pause_s)
        finally:
            await self.shut()

    async def shut(self) -> None:
        """Close all connections."""
        await asyncio.gather(*map(self._close_engine, self._engines.values()))

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
        for name, engine in self._engines.items():
            if name not in self._looks:
                self._looks[name] = asyncio.create_task(self._look_at_engine(engine, config))
        await asyncio.wait(self._looks.values(), timeout=PATIENCE_S)
        ended = [self._looks.pop(name) for name, task in list(self._looks.items()) if task.done()]
        taken = [task.result() for task in ended]
        return any(taken)

    async def _open_engines(self, config: Config) -> None:
        wanted = {
            engine.name: engine
            for engine in config.engines or ()
            if engine.kind == "kubernetes" and engine.options.get("elasticJobs")
        }
        for name, engine in list(self._engines.items()):
            if wanted.get(name) != engine.document:
                del self._engines[name]
                await self._close_engine(engine)
        for name, document in wanted.items():
            if name in self._engines:
                continue
            try:
                client = self._open_client(document)
            except ElastaneError as error:
                why = str(error)
            else:
                self._unusable.pop(name, None)
                self._engines[name] = FollowedEngine(document, client, document.options["elasticJobs"])
                continue
            if self._unusable.get(name) != why:
                self._unusable[name] = why
                logger.error("ElasticJobs of engine %s are not followed: %s", name, why)

    async def _close_engine(self, engine: FollowedEngine) -> None:
        task = self._looks.pop(engine.name, None)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        await engine.client.close()

    async def _look_at_engine(self, engine: FollowedEngine, config: Config) -> bool:
        resources = await engine.client.list_resources()
        if isinstance(resources, Away):
            engine.complain(resources.why)
            return False
        engine.complain("")
        situations = self._read_situations(engine, resources)
        pools = tuple(pool for pool in config.pools or () if pool.engine == engine.name)
        taken = await asyncio.gather(
            *(self._take_step(engine, situation, pools) for situation in situations.values())
        )
        engine.forget_others(situations)
        await engine.show(situations.values(), self._clock())
        return any(taken)

    def _read_situations(
        self, engine: FollowedEngine, resources: Mapping[str, ElasticJob]
    ) -> dict[str, Situation]:
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

    async def _take_step(self, engine: FollowedEngine, situation: Situation, pools: tuple[Pool, ...]) -> bool:
        """Take the next step for a resource; return whether one was taken."""
        step, resource, kept = choose_step(situation), situation.resource, situation.kept
        match step:
            case Step.SUBMIT | Step.CHANGE if resource is not None:
                if engine.must_wait(resource, self._clock()):
                    return False
                self._accept(engine, resource, pools)
            case Step.CLAIM if resource is not None:
                finalizers = (*resource.finalizers, situation.finalizer)
                return engine.note(await engine.client.set_finalizers(resource, finalizers))
            case Step.RELEASE if resource is not None:
                left = tuple(name for name in resource.finalizers if name != situation.finalizer)
                return engine.note(await engine.client.set_finalizers(resource, left))
            case Step.REMOVE if resource is not None:
                return engine.note(await engine.client.remove(resource))
            case Step.CANCEL if kept is not None:
                self._cancel(engine, kept)
            case Step.FORGET if kept is not None:
                with self._store.begin_write() as tx:
                    elastic_job_rows.forget_elastic_job(tx, kept.uid)
            case _:
                return False
        return True

    def _accept(self, engine: FollowedEngine, resource: ElasticJob, pools: tuple[Pool, ...]) -> None:
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
            engine.refuse(resource, why, self._clock())
        else:
            engine.accept(resource)
            self._wake()

    def _cancel(self, engine: FollowedEngine, kept: StoredElasticJob) -> None:
        with self._store.begin_write() as tx:
            job = jobs.find_job(tx, kept.job)
            if job is not None and not job.has_ended:
                end_job(tx, job, engine.user, self._clock())
        self._wake()
