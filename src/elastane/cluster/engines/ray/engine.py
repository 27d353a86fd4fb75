"""The engine: it asks the driver, and concludes nothing without an answer."""

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from elastane.cluster.engines.decoded_options import decode_pools
from elastane.cluster.engines.ray.actor_order import ActorOrder, build_order, encode_orders
from elastane.cluster.engines.ray.driver_process import RayDriver
from elastane.cluster.engines.ray.options import RayOptions, decode_ray_pool
from elastane.cluster.engines.ray.sightings import HEAD_LOST, describe_agents, list_leavers, list_ray_nodes
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
from elastane.common.safe_text import escape_line, fold_text

NAMESPACE = "elastane-"
"""The namespace of the actors of a cluster begins with it, and ends with the cluster's id."""
ABSENCE_S = 15.0
"""Agents that are lost while Ray does not answer for so long were probably lost with its head."""
MOST_LOST = 1000


class RayEngine:
    """An `elastane.cluster.nouns.agents.AgentEngine` with detached actors as parents of agents.

    Ray forgets an actor when it dies. The driver remembers for some minutes how agents have ended that it has
    seen.

    Args:
        cluster: id of the cluster, with which the ids of its agents begin.
        now: returns the seconds since 1970.
    """

    def __init__(
        self, cluster: str, options: RayOptions | None = None, *, now: Callable[[], float] = time.time
    ) -> None:
        self._cluster = cluster
        self._options = options or RayOptions()
        self._driver = RayDriver(
            self._options.python, self._options.address, f"{NAMESPACE}{cluster}", self._options.answer_s
        )
        self._now = now
        self._answered_s = now()
        self._was_away = False
        """Since the last answer."""
        self._living: frozenset[AgentId] = frozenset()
        """At the last answer."""
        self._lost: dict[AgentId, SeenAgent] = {}
        """Those that were lost with the head of Ray, which Ray has forgotten."""

    async def list_agents(self) -> Sequence[SeenAgent] | Away:
        """Return the agents of all actors, and ask those to leave that are on nodes which Ray drains."""
        sight = await self._driver.look(self._cluster)
        if isinstance(sight, Away):
            self._was_away = True
            return sight
        if leavers := list_leavers(sight):
            # A notice that fails is given again the next time.
            await self._driver.ask("end", leave=leavers, kill=[])
        return self._add_lost(describe_agents(sight))

    def _add_lost(self, seen: Sequence[SeenAgent]) -> tuple[SeenAgent, ...]:
        """Add the agents that Ray has forgotten while it did not answer, with the probable reason."""
        now_s = self._now()
        known = {agent.id for agent in seen}
        if self._was_away and now_s - self._answered_s > ABSENCE_S:
            for agent in self._living - known:
                self._lost[agent] = SeenAgent(id=agent, state="gone", why=HEAD_LOST)
            self._lost = dict(list(self._lost.items())[-MOST_LOST:])
        self._answered_s, self._was_away = now_s, False
        self._living = frozenset(agent.id for agent in seen if agent.state != "gone")
        return (*seen, *(agent for id_, agent in self._lost.items() if id_ not in known))

    async def start_agents(self, asks: Sequence[AgentAsk]) -> Mapping[AgentId, StartRefusal]:
        """Make an actor for each agent that has none, see `elastane.cluster.nouns.agents`."""
        refusals: dict[AgentId, StartRefusal] = {}
        orders: dict[AgentId, ActorOrder] = {}
        for ask in asks:
            if not belongs_to(ask.id, self._cluster):
                why = f"{escape_line(ask.id)} is not an agent of cluster {self._cluster}"
                refusals[ask.id] = StartRefusal(why, for_ever=True)
                continue
            try:
                orders[ask.id] = build_order(ask, decode_ray_pool(ask.pool), self._options)
            except BadInput as error:
                refusals[ask.id] = StartRefusal(error.what, for_ever=True)
        # Ray does not know those that are lost, and would start them again.
        wanted = {id_: order for id_, order in orders.items() if id_ not in self._lost}
        if wanted:
            failed = await self._ask_for_failures("start", wanted, orders=encode_orders(wanted))
            refusals |= {id_: StartRefusal(why) for id_, why in failed.items()}
        return refusals

    async def end_agents(self, ends: Sequence[AgentEnd]) -> Mapping[AgentId, str]:
        """Give agents a notice, or kill the actors of those that get no grace.

        The engine has no clock: call it again with a grace of 0 at the deadline. A killed actor takes all of
        its agent with it, at once.
        """
        own = [end for end in ends if belongs_to(end.id, self._cluster)]
        if not own:
            return {}
        leave = [end.id for end in own if end.grace_s > 0]
        kill = [end.id for end in own if end.grace_s <= 0]
        return await self._ask_for_failures("end", [*leave, *kill], leave=leave, kill=kill)

    async def _ask_for_failures(
        self, what: str, agents: Sequence[AgentId] | Mapping[AgentId, object], **arguments: object
    ) -> dict[AgentId, str]:
        """Let the driver do something with agents; return why that has failed, by id."""
        answer = await self._driver.ask(what, **arguments)
        if isinstance(answer, Away):
            return dict.fromkeys(agents, answer.why)
        try:
            failed = msgspec.convert(answer, dict[str, str])
        except msgspec.ValidationError:
            return dict.fromkeys(agents, "the driver of Ray gave no readable answer")
        return {id_: fold_text(why) for id_, why in failed.items() if id_ in agents}

    async def list_nodes(self, pools: Mapping[str, Mapping[str, str]]) -> Sequence[SeenNode] | Away:
        """Return the nodes of pools on which actors can begin; a pool with invalid options has none.

        A node in two pools is listed, and its devices are counted, in both.
        """
        sight = await self._driver.look(self._cluster)
        if isinstance(sight, Away):
            return sight
        found: list[SeenNode] = []
        for name, pool in decode_pools(pools, decode_ray_pool).items():
            found += list_ray_nodes(name, pool, sight, self._now())
        return found

    async def close(self) -> None:
        """End the driver; agents go on."""
        await self._driver.close()
