"""The workloads of Kueue in one namespace, which are read only while pods wait for their admission."""

import time
from collections.abc import Callable, Collection, Mapping

import msgspec

from elastane.cluster.engines.kubernetes.api_server import ApiServer
from elastane.cluster.engines.kubernetes.followed_list import FollowedList
from elastane.cluster.engines.kubernetes.kueue import (
    KUEUE,
    VERSIONS,
    Workload,
    decode_workload,
    explain_waiting,
)
from elastane.cluster.engines.kubernetes.pods import AgentPod
from elastane.cluster.nouns.agents import Away
from elastane.common.untrusted_data import Decoder, Malformed

AGAIN_S = 60.0
"""How long after a failure the workloads are not asked for again."""


class _Version(msgspec.Struct, frozen=True):
    version: str


class _Group(msgspec.Struct, frozen=True):
    versions: list[_Version]


_decode_group: Decoder[_Group] = Decoder(_Group)


async def find_kueue_api(server: ApiServer) -> str | None:
    """Return the path of the API of Kueue; None: it is not there, or does not answer."""
    answer = await server.get(f"/apis/{KUEUE}")
    if not isinstance(answer, bytes):
        return None
    try:
        served = {one.version for one in _decode_group(answer).versions}
    except Malformed:
        return None
    return next((f"/apis/{KUEUE}/{version}" for version in VERSIONS if version in served), None)


class WorkloadList:
    """What Kueue says about the pods that wait for it; nothing without the right to read it."""

    def __init__(
        self, server: ApiServer, namespace: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._server = server
        self._namespace = namespace
        self._clock = clock
        self._list: FollowedList[Workload] | None = None
        self._again_s = float("-inf")

    async def find_words(self, pods: Collection[AgentPod]) -> Mapping[str, str]:
        """Return the words about pods, by UID. It never fails: nothing depends on them."""
        waiting = [pod for pod in pods if pod.is_queued and pod.state == "pending"]
        if not waiting or self._clock() < self._again_s:
            return {}
        if self._list is None and (path := await find_kueue_api(self._server)) is not None:
            path = f"{path}/namespaces/{self._namespace}/workloads"
            self._list = FollowedList(self._server, path, {}, decode_workload)
        if self._list is None or isinstance(await self._list.refresh(), Away):
            self._again_s = self._clock() + AGAIN_S
            return {}
        return explain_waiting(self._list.items.values(), [(pod.uid, pod.group) for pod in waiting])

    async def close(self) -> None:
        """Follow the workloads no longer."""
        if self._list is not None:
            await self._list.close()
