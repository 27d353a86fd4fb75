"""One engine with ElasticJobs: all that is remembered of its resources, and what people see of their jobs."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from elastane.cluster.controller.elastic_jobs.decisions import Situation, belongs_to_another
from elastane.cluster.controller.elastic_jobs.status import (
    WrittenStatus,
    build_merge_patch,
    build_resource_status,
    must_write,
)
from elastane.cluster.engines.kubernetes.elastic_jobs.client import ElasticJobClient, ResourceEvent
from elastane.cluster.engines.kubernetes.elastic_jobs.resource import ElasticJob
from elastane.cluster.nouns.config import DeclaredEngine
from elastane.cluster.nouns.history import Event
from elastane.common.safe_text import escape_line

TRY_AGAIN_S = 30.0
"""A spec that was refused is looked at again after this time: a team may have reached a limit then."""
MOST_EVENTS = 2000
"""Events that wait for an API server that does not answer; older ones are dropped."""
WARNINGS = ("job.held_up", "job.failed", "job.crashed", "job.unreadable")

logger = logging.getLogger(__name__)


class _Refusal(NamedTuple):
    generation: int
    why: str
    again_s: float


class FollowedEngine:
    """One engine with resources that become jobs. What it remembers only spares repeated requests.

    Args:
        team: owns the jobs.

    Attributes:
        events: of jobs, which have not been shown.
    """

    def __init__(self, document: DeclaredEngine, client: ElasticJobClient, team: str) -> None:
        self.document, self.client, self.team = document, client, team
        self.name = document.name
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._written: dict[str, WrittenStatus] = {}
        self._refusals: dict[str, _Refusal] = {}
        self._complaint = ""
        self._noted = ""

    @property
    def user(self) -> str:
        """The user of its jobs. No token has such a name."""
        return f"{self.name}:{self.client.namespace}"

    def forget_others(self, uids: Iterable[str]) -> None:
        """Forget all about resources that are gone."""
        there = frozenset(uids)
        for kept in (self._written, self._refusals):
            for uid in kept.keys() - there:
                del kept[uid]

    # -- specs that are refused --------------------------------------------------------------------------

    def refuse(self, resource: ElasticJob, why: str, now_s: float) -> None:
        """Remember why the spec of a resource was not accepted."""
        self._refusals[resource.uid] = _Refusal(resource.generation, why, now_s + TRY_AGAIN_S)

    def accept(self, resource: ElasticJob) -> None:
        """Forget that the spec of a resource was refused."""
        self._refusals.pop(resource.uid, None)

    def must_wait(self, resource: ElasticJob, now_s: float) -> bool:
        """Return whether the same spec was refused a short time ago."""
        refusal = self._refusals.get(resource.uid)
        return refusal is not None and refusal.generation == resource.generation and now_s < refusal.again_s

    def _explain_refusal(self, resource: ElasticJob) -> str:
        refusal = self._refusals.get(resource.uid)
        return refusal.why if refusal is not None and refusal.generation == resource.generation else ""

    # -- the log of the controller -----------------------------------------------------------------------

    def complain(self, why: str) -> None:
        """Log that the resources are not seen, or are seen again, when that changes; empty: they are."""
        if why and not self._complaint:
            logger.warning(
                "ElasticJobs of engine %s are not seen, so nothing is concluded: %s",
                self.name,
                escape_line(why),
            )
        elif self._complaint and not why:
            logger.info("ElasticJobs of engine %s are seen again", self.name)
        self._complaint = why

    def note(self, why: str) -> bool:
        """Log why a resource could not be changed, if that is new; return whether it was changed."""
        if why and why != self._noted:
            logger.info("an ElasticJob of engine %s is not changed now: %s", self.name, escape_line(why))
        self._noted = why or self._noted
        return not why

    # -- what people see ---------------------------------------------------------------------------------

    async def show(self, situations: Iterable[Situation], now_s: float) -> None:
        """Write the statuses that have changed, and the events that have happened."""
        resources: dict[str, ElasticJob] = {}
        statuses = []
        for situation in situations:
            resource, kept = situation.resource, situation.kept
            if resource is None or belongs_to_another(resource, situation.finalizer):
                continue
            statuses.append(self._show_status(resource, situation, now_s))
            if kept is not None:
                resources[kept.job] = resource
        await asyncio.gather(*statuses)
        while self.events:
            resource = resources.get(self.events[0].job)
            if resource is not None:
                event = _describe_event(self.events[0])
                if not self.note(await self.client.write_event(resource, event)):
                    return
            self.events.popleft()

    async def _show_status(self, resource: ElasticJob, situation: Situation, now_s: float) -> None:
        refusal = self._explain_refusal(resource)
        if situation.kept is None and not refusal:
            return
        status = build_resource_status(resource, situation.kept, situation.job, refusal, now_s)
        if not must_write(resource, status, self._written.get(resource.uid), now_s):
            return
        self._written[resource.uid] = WrittenStatus(status, now_s)
        patch = build_merge_patch(resource.status, status)
        if not self.note(await self.client.write_status(resource, patch)):
            self._written.pop(resource.uid, None)


def _describe_event(event: Event) -> ResourceEvent:
    _, _, words = event.kind.partition(".")
    return ResourceEvent(
        number=event.id,
        reason="".join(word.title() for word in words.split("_")),
        message=event.message,
        is_warning=event.kind in WARNINGS,
        time_s=event.time_s,
    )
