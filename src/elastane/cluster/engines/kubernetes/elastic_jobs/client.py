"""The `ElasticJob` resources of one namespace: what the API server shows, and changes of them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from elastane.cluster.engines.kubernetes.api_server import ApiServer
from elastane.cluster.engines.kubernetes.elastic_jobs.resource import (
    API_VERSION,
    KIND,
    ElasticJob,
    decode_elastic_job,
    find_access_path,
)
from elastane.cluster.engines.kubernetes.followed_list import FollowedList
from elastane.cluster.engines.kubernetes.kubeconfig import find_access
from elastane.cluster.engines.kubernetes.options import KubernetesOptions
from elastane.cluster.engines.kubernetes.refusals import CONFLICT, NOT_FOUND, ApiRefusal
from elastane.cluster.nouns.agents import Away
from elastane.common.safe_text import fold_text

LONGEST_MESSAGE = 1000
"""An API server takes 1,024 bytes."""


class ResourceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event about a resource, as `kubectl describe` shows it.

    Args:
        number: by which it is not created twice.
        reason: a word.
        message: a sentence.
    """

    number: int
    reason: str
    message: str
    is_warning: bool
    time_s: float


class ElasticJobClient:
    """The resources in the namespace of an engine, for one event loop.

    Each change returns why it was not made; empty: it was, or is not needed any more.

    Raises:
        BadInput: the options do not lead to an API server.
    """

    def __init__(self, options: KubernetesOptions) -> None:
        access = find_access(options)
        namespace = options.namespace or access.namespace
        self.place = f"{access.server} {namespace}"
        self.namespace = namespace
        self._server = ApiServer(access, options.answer_s)
        self._list: FollowedList[ElasticJob] = FollowedList(
            self._server, find_access_path(namespace), {}, decode_elastic_job
        )

    async def list_resources(self) -> Mapping[str, ElasticJob] | Away:
        """Return all resources by UID."""
        if (away := await self._list.refresh()) is not None:
            return away
        return {resource.uid: resource for resource in self._list.items.values()}

    async def set_finalizers(self, resource: ElasticJob, finalizers: tuple[str, ...]) -> str:
        """Set the finalizers of a resource, unless it has changed since it was seen."""
        metadata = {"finalizers": finalizers, "uid": resource.uid, "resourceVersion": resource.version}
        return await self._change("PATCH", self._find_path(resource), {"metadata": metadata})

    async def write_status(self, resource: ElasticJob, status: Mapping[str, Any]) -> str:
        """Apply a merge patch to the status of a resource."""
        body = {"metadata": {"uid": resource.uid}, "status": status}
        return await self._change("PATCH", self._find_path(resource, "status"), body)

    async def remove(self, resource: ElasticJob) -> str:
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": resource.uid}}
        return await self._change("DELETE", self._find_path(resource), options)

    async def write_event(self, resource: ElasticJob, event: ResourceEvent) -> str:
        """Create an event about a resource, unless it is there, or may not be."""
        time = datetime.fromtimestamp(event.time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        about = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": resource.name,
            "namespace": resource.namespace,
            "uid": resource.uid,
        }
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{resource.name}.{resource.uid[:8]}.{event.number:x}",
                "namespace": self.namespace,
            },
            "involvedObject": about,
            "reason": event.reason,
            "message": fold_text(event.message, LONGEST_MESSAGE),
            "type": "Warning" if event.is_warning else "Normal",
            "source": {"component": "elastane"},
            "firstTimestamp": time,
            "lastTimestamp": time,
            "count": 1,
        }
        answer = await self._server.ask("POST", f"/api/v1/namespaces/{self.namespace}/events", body=body)
        if isinstance(answer, Away):
            return answer.why
        # The status says the same, so an event that is refused for ever is left out.
        return answer.words if isinstance(answer, ApiRefusal) and answer.is_failure else ""

    async def close(self) -> None:
        await self._list.close()
        await self._server.close()

    async def _change(self, method: str, path: str, body: object) -> str:
        answer = await self._server.ask(method, path, body=body)
        if isinstance(answer, Away):
            return answer.why
        if isinstance(answer, ApiRefusal):
            # It has changed, or is gone: the next look decides again.
            return "" if answer.code in (NOT_FOUND, CONFLICT) else answer.words
        return ""

    def _find_path(self, resource: ElasticJob, sub: str = "") -> str:
        return find_access_path(self.namespace, resource.name, sub)
