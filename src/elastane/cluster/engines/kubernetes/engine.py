"""The engine: it asks the API server, and keeps nothing between two calls that it could not list again."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from elastane.cluster.engines.decoded_options import decode_pools
from elastane.cluster.engines.kubernetes import nodes
from elastane.cluster.engines.kubernetes.api_server import ApiServer
from elastane.cluster.engines.kubernetes.followed_list import FollowedList
from elastane.cluster.engines.kubernetes.kubeconfig import ApiAccess, find_access
from elastane.cluster.engines.kubernetes.manifest import CLUSTER_LABEL, build_pod, build_secret, name_pod
from elastane.cluster.engines.kubernetes.nodes import ListedNode, PodRequests, decode_node, decode_requests
from elastane.cluster.engines.kubernetes.options import KubernetesOptions, decode_kubernetes_pool
from elastane.cluster.engines.kubernetes.pods import AgentPod, choose_grace_s, decode_agent_pod, describe_pod
from elastane.cluster.engines.kubernetes.refusals import (
    ALREADY_EXISTS,
    CONFLICT,
    FORBIDDEN,
    NOT_FOUND,
    ApiRefusal,
    judge_creation,
)
from elastane.cluster.engines.kubernetes.workload_list import WorkloadList
from elastane.cluster.nouns.agents import (
    AgentAsk,
    AgentEnd,
    AgentId,
    Away,
    SeenAgent,
    SeenNode,
    StartRefusal,
    belongs_to,
)
from elastane.common.errors import BadInput

KEPT_S = 1800.0
"""How long pods of agents that are gone stay, with their logs, and how long removed ones are remembered."""
REMOVED_AT_ONCE = 20
ON_NODES = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""Selects the pods that hold devices."""
LONGEST_GRACE_S = 1 << 31


class KubernetesEngine:
    """An `elastane.cluster.nouns.agents.AgentEngine` with pods as agents.

    It sees and ends pods with the label of its cluster only, in one namespace. It removes the pods of agents
    some time after they ended.

    Args:
        cluster: id of the cluster, with which the ids of its agents begin.
        access: how to speak to the API server; None: the options say it.
        now: returns the seconds since 1970.

    Raises:
        BadInput: the options do not lead to an API server.
    """

    def __init__(
        self,
        cluster: str,
        options: KubernetesOptions | None = None,
        *,
        access: ApiAccess | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._options = options or KubernetesOptions()
        access = access or find_access(self._options)
        self._namespace = self._options.namespace or access.namespace
        self._now = now
        self._server = ApiServer(access, self._options.answer_s)
        self._folder = f"/api/v1/namespaces/{self._namespace}"
        self._pods: FollowedList[AgentPod] = FollowedList(
            self._server,
            f"{self._folder}/pods",
            {"labelSelector": f"{CLUSTER_LABEL}={cluster}"},
            partial(decode_agent_pod, cluster=cluster),
            keeps_removed=True,
        )
        self._listed_nodes: FollowedList[ListedNode] = FollowedList(
            self._server, "/api/v1/nodes", {}, decode_node
        )
        self._requests: FollowedList[PodRequests] = FollowedList(
            self._server, "/api/v1/pods", {"fieldSelector": ON_NODES}, decode_requests
        )
        self._workloads = WorkloadList(self._server, self._namespace)
        self._gone_s: dict[str, float] = {}
        """When agents that are gone were first seen so, by the key of their pod."""

    async def list_agents(self) -> Sequence[SeenAgent] | Away:
        """Return the agents of all pods of the cluster, and of those removed within the last half hour."""
        if (away := await self._refresh(self._pods)) is not None:
            return away
        removed = {
            key: msgspec.structs.replace(pod, is_deleted=True) for key, pod in self._pods.removed.items()
        }
        pods = {**removed, **self._pods.items}
        await self._remove_old(pods)
        words = await self._workloads.find_words(pods.values())
        return tuple(describe_pod(pod, words.get(pod.uid, "")) for _, pod in sorted(pods.items()))

    async def start_agents(self, asks: Sequence[AgentAsk]) -> Mapping[AgentId, StartRefusal]:
        """Create a pod for each agent that has none, see `elastane.cluster.nouns.agents`.

        Names are unique, so a repeated request finds the pod of the first one, even if that had no answer.
        """
        refusals = await asyncio.gather(*map(self._start, asks))
        found = zip(asks, refusals, strict=True)
        return {ask.id: refusal for ask, refusal in found if refusal is not None}

    async def end_agents(self, ends: Sequence[AgentEnd]) -> Mapping[AgentId, str]:
        """Delete the pods of agents, which get SIGTERM, and SIGKILL when their grace is over.

        Kubernetes gives the notice once. A repeated request can only make the grace shorter.
        """
        if not ends:
            return {}
        if (away := await self._pods.refresh()) is not None:
            return {end.id: away.why for end in ends}
        failures = await asyncio.gather(*map(self._end, ends))
        return {end.id: why for end, why in zip(ends, failures, strict=True) if why}

    async def list_nodes(self, pools: Mapping[str, Mapping[str, str]]) -> Sequence[SeenNode] | Away:
        """Return the nodes of pools on which pods can begin; a pool with invalid options has none.

        A node in two pools is listed, and its devices are counted, in both.
        """
        if (away := await self._refresh(self._listed_nodes, self._requests)) is not None:
            return away
        listed_nodes, requests_of_pods = self._listed_nodes.items.values(), self._requests.items.values()
        found: list[SeenNode] = []
        for name, pool in decode_pools(pools, decode_kubernetes_pool).items():
            found += nodes.list_nodes_of_pool(
                name, pool, listed_nodes, requests_of_pods, self._cluster, self._namespace
            )
        return found

    async def close(self) -> None:
        """Close the connections; pods go on."""
        lists = (self._pods, self._listed_nodes, self._requests, self._workloads)
        await asyncio.gather(*(one.close() for one in lists))
        await self._server.close()

    async def _refresh(
        self, *lists: FollowedList[AgentPod] | FollowedList[ListedNode] | FollowedList[PodRequests]
    ) -> Away | None:
        """Make sure that lists are complete and that the API server answers now; return why not.

        A watch that says nothing may be one without news, or one on a dead connection.
        """
        found = await asyncio.gather(self._probe(), *(one.refresh() for one in lists))
        return next((away for away in found if away is not None), None)

    async def _probe(self) -> Away | None:
        answer = await self._server.get(self._folder)
        if isinstance(answer, Away):
            return answer
        if isinstance(answer, ApiRefusal) and answer.code != FORBIDDEN:
            return Away(f"the API server does not show namespace {self._namespace}: {answer.words}")
        return None

    async def _start(self, ask: AgentAsk) -> StartRefusal | None:
        """Create the pod of an agent and its Secret; return why that failed, or None."""
        if not belongs_to(ask.id, self._cluster):
            return StartRefusal(f"{ask.id} is not an agent of cluster {self._cluster}", for_ever=True)
        if self._find_key(ask.id) in self._pods.removed:
            # It has been there, and has ended.
            return None
        try:
            body = build_pod(ask, decode_kubernetes_pool(ask.pool), self._options, self._now())
        except BadInput as error:
            return StartRefusal(error.what, for_ever=True)
        answer = await self._server.ask("POST", f"{self._folder}/pods", body=body)
        if isinstance(answer, ApiRefusal) and answer.reason == ALREADY_EXISTS:
            # A request before this one has created it, perhaps without its Secret.
            answer = await self._server.ask("GET", f"{self._folder}/pods/{name_pod(ask.id)}")
            if isinstance(answer, ApiRefusal) and answer.code == NOT_FOUND:
                return None
        if isinstance(answer, Away):
            return StartRefusal(answer.why)
        if isinstance(answer, ApiRefusal):
            return judge_creation(answer)
        return await self._complete(ask, answer)

    async def _complete(self, ask: AgentAsk, document: bytes) -> StartRefusal | None:
        """Create the Secret of an agent that has a pod, unless it is there; return why that failed."""
        pod = decode_agent_pod(document, self._cluster)
        if pod is None or pod.agent != ask.id:
            return StartRefusal(
                f"pod {name_pod(ask.id)} of namespace {self._namespace} is not one of this cluster",
                for_ever=True,
            )
        self._pods.add(document)
        if pod.state in ("leaving", "gone"):
            return None
        secret = build_secret(ask, pod.uid)
        answer = await self._server.ask("POST", f"{self._folder}/secrets", body=secret)
        if isinstance(answer, Away):
            return StartRefusal(answer.why)
        if isinstance(answer, ApiRefusal) and answer.reason != ALREADY_EXISTS:
            return judge_creation(answer)
        return None

    async def _end(self, end: AgentEnd) -> str:
        """Delete the pod of an agent; return why that failed, or an empty text."""
        key = self._find_key(end.id)
        pod = self._pods.items.get(key)
        if pod is None:
            return ""
        wanted_s = min(LONGEST_GRACE_S, math.ceil(max(0.0, end.grace_s)))
        grace_s = choose_grace_s(pod, wanted_s, self._now())
        return "" if grace_s is None else await self._delete(key, pod, grace_s)

    async def _delete(self, key: str, pod: AgentPod, grace_s: int) -> str:
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": grace_s,
            # Not another pod that has the name since.
            "preconditions": {"uid": pod.uid},
        }
        answer = await self._server.ask("DELETE", f"{self._folder}/pods/{pod.name}", body=options)
        if isinstance(answer, Away):
            return answer.why
        if isinstance(answer, ApiRefusal):
            if answer.code not in (NOT_FOUND, CONFLICT):
                return answer.words
            self._pods.forget(key)
        return ""

    async def _remove_old(self, pods: Mapping[str, AgentPod]) -> None:
        """Remove the pods of agents that have been gone for long, and forget those that are removed."""
        now_s = self._now()
        gone = [key for key, pod in pods.items() if pod.state == "gone"]
        self._gone_s = {key: self._gone_s.get(key, now_s) for key in gone}
        old = [key for key in gone if now_s - self._gone_s[key] >= KEPT_S]
        for key in old:
            if pods[key].is_deleted:
                self._pods.forget(key)
        # One that is deleted already may be kept by a finalizer of Kueue.
        left = [key for key in old if not pods[key].is_deleted and pods[key].deletes_by_s is None]
        left = left[:REMOVED_AT_ONCE]
        # What fails is tried again the next time.
        await asyncio.gather(*(self._delete(key, pods[key], 1) for key in left))

    def _find_key(self, agent: AgentId) -> str:
        return f"{self._namespace}/{name_pod(agent)}"
