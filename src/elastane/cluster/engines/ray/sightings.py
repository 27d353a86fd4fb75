"""What the driver has seen of Ray, and what it says about agents and nodes. Pure."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from elastane.cluster.engines.ray.options import RayPool
from elastane.cluster.nouns.agents import AgentId, SeenAgent, SeenNode, belongs_to
from elastane.common.safe_text import escape_line, fold_text

SETTLED_S = 10.0
"""How long Ray may take to count what an actor holds, after its start and after its end."""
STARTING_S = 60.0
"""How long an actor may take to answer after Ray has found a node for it."""
LONGEST_NAME = 100
LONGEST_WHY = 300
HEAD_LOST = (
    "it was lost while Ray did not answer: nodes that do not reach the head for the time of Ray's setting "
    "gcs_rpc_server_reconnect_timeout_s (60 s unless it is set) exit, and all their actors end"
)
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_OTHER_CHARACTERS = re.compile(r"[^A-Za-z0-9_.-]+")

T = TypeVar("T")


class SeenActor(msgspec.Struct, frozen=True, kw_only=True):
    """An actor, as the driver sees it. What the actor has not told yet is as by default.

    Args:
        node: id of its node in Ray; empty: it has not answered, and waits for a node or begins.
        gone: it has died, or its process has ended.
        leaving: its process was asked to leave.
        code: of the process; negative: the number of a signal; None: it runs, or its end was not seen.
        why: words of Ray or of the actor about its end.
        holds, needs, labels: as in `ActorOrder`; empty: unknown.
        asked_s: when the driver asked for it, in seconds since 1970; 0: an earlier driver did.
    """

    name: str
    node: str = ""
    gone: bool = False
    leaving: bool = False
    code: int | None = None
    why: str = ""
    holds: Mapping[str, float] = {}
    needs: Mapping[str, float] = {}
    labels: Mapping[str, str] = {}
    asked_s: float = 0.0
    ended_s: float | None = None


class RayNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node, as the driver sees it.

    Args:
        id: of this life of the node.
        name: that an operator gave it, or its address; other nodes may have the same.
        resources: all that it has.
        free: those that are not held.
        draining: Ray starts nothing there any more.
        leaves_s: when Ray will end it, in seconds since 1970; 0: unknown.
    """

    id: str
    name: str = ""
    resources: Mapping[str, float] = {}
    free: Mapping[str, float] = {}
    labels: Mapping[str, str] = {}
    draining: bool = False
    leaves_s: float = 0.0


class Sight(msgspec.Struct, frozen=True):
    """All actors of a cluster's agents, and all nodes of Ray."""

    actors: tuple[SeenActor, ...]
    nodes: tuple[RayNode, ...]


class _RawSight(msgspec.Struct, frozen=True):
    actors: tuple[dict[str, Any], ...]
    nodes: tuple[dict[str, Any], ...]


def decode_sight(answer: Any, cluster: str) -> Sight:
    """Return what the driver has seen.

    Each actor and node is checked by itself: every user of the Ray cluster can make an actor that answers
    anything. Of an actor that cannot be read only the name counts.

    Raises:
        msgspec.ValidationError: the answer as a whole has another form.
    """
    raw = msgspec.convert(answer, _RawSight)
    names = (actor.get("name") for actor in raw.actors)
    own = [name for name in names if isinstance(name, str) and belongs_to(name, cluster)]
    read = {actor.name: actor for found in raw.actors if (actor := _convert(found, SeenActor)) is not None}
    nodes = (_convert(found, RayNode) for found in raw.nodes)
    return Sight(
        tuple(read.get(name, SeenActor(name=name)) for name in dict.fromkeys(own)),
        tuple(node for node in nodes if node is not None),
    )


def _convert(found: dict[str, Any], kind: type[T]) -> T | None:
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError:
        return None


def name_nodes(nodes: Iterable[RayNode]) -> dict[str, str]:
    """Return a name for each node, by its id: its own one, with a part of the id if others have it too."""
    own = {node.id: _make_name(node.name) for node in nodes}
    often = Counter(own.values())
    return {
        id_: name if name and often[name] == 1 else "-".join(filter(None, (name, _make_name(id_)[:8])))
        for id_, name in own.items()
    }


def _make_name(text: str) -> str:
    name = _OTHER_CHARACTERS.sub("-", text[:LONGEST_NAME])
    return name if _NODE.fullmatch(name) else ""


def describe_agents(sight: Sight) -> tuple[SeenAgent, ...]:
    """Return what the actors say about their agents."""
    names = name_nodes(sight.nodes)
    nodes = {node.id: node for node in sight.nodes}
    return tuple(
        _describe_agent(actor, nodes.get(actor.node), names.get(actor.node, ""), sight.nodes)
        for actor in sight.actors
    )


def _describe_agent(actor: SeenActor, node: RayNode | None, name: str, nodes: Sequence[RayNode]) -> SeenAgent:
    if actor.gone:
        return SeenAgent(
            id=actor.name,
            state="gone",
            node=name,
            why=explain_end(actor),
            exit_code=actor.code if actor.code is not None and actor.code >= 0 else None,
            ended_s=actor.ended_s,
        )
    if not actor.node:
        return SeenAgent(id=actor.name, state="pending", why=explain_wait(actor, nodes))
    drained = node is not None and node.draining
    return SeenAgent(
        id=actor.name,
        state="leaving" if actor.leaving else "running",
        node=name,
        why=f"Ray drains its node {name}" if drained else "",
        until_s=node.leaves_s or None if node is not None and drained else None,
    )


def explain_wait(actor: SeenActor, nodes: Iterable[RayNode]) -> str:
    """Return why an actor has not answered yet, as far as the resources of the nodes tell."""
    if not actor.holds:
        return "its actor has not answered yet"
    words = [f"{amount:g} {name}" for name, amount in sorted(actor.holds.items())]
    words += [f"{name}={value}" for name, value in sorted(actor.labels.items())]
    wanted = escape_line(", ".join([*words, *sorted(actor.needs)]), LONGEST_WHY)
    usable = [node for node in nodes if not node.draining and actor.labels.items() <= node.labels.items()]
    if not any(_has(node.resources, {**actor.needs, **actor.holds}) for node in usable):
        return f"no node of Ray has {wanted}: it waits for a new node"
    if not any(_has(node.free, actor.holds) for node in usable):
        return f"no node of Ray has {wanted} free now"
    return "Ray starts its actor"


def _has(amounts: Mapping[str, float], wanted: Mapping[str, float]) -> bool:
    return all(amounts.get(name, 0.0) >= amount for name, amount in wanted.items())


def explain_end(actor: SeenActor) -> str:
    """Return how an agent has ended."""
    if actor.why:
        return fold_text(actor.why, LONGEST_WHY)
    if actor.code is None:
        return "Ray does not know its actor any more"
    return f"it ended with exit code {actor.code}" if actor.code >= 0 else f"signal {-actor.code} ended it"


def list_leavers(sight: Sight) -> list[AgentId]:
    """Return the agents on nodes that Ray drains, which have not been asked to leave."""
    drained = {node.id for node in sight.nodes if node.draining}
    return [
        actor.name for actor in sight.actors if actor.node in drained and not actor.leaving and not actor.gone
    ]


def list_ray_nodes(name: str, pool: RayPool, sight: Sight, now_s: float) -> tuple[SeenNode, ...]:
    """Return the nodes of a pool with the devices that the cluster may use; those without are left out.

    Args:
        now_s: seconds since 1970.
    """
    nodes = [node for node in sight.nodes if not node.draining]
    others = count_others(nodes, sight.actors, now_s)
    names = name_nodes(sight.nodes)
    found = (
        SeenNode(name=names[node.id], pool=name, devices=devices)
        for node in nodes
        if _is_in_pool(node, pool) and (devices := _count_devices(node, pool, others[node.id])) > 0
    )
    return tuple(sorted(found, key=lambda node: node.name))


def _is_in_pool(node: RayNode, pool: RayPool) -> bool:
    return _has(node.resources, pool.needs) and pool.labels.items() <= node.labels.items()


def _count_devices(node: RayNode, pool: RayPool, others: Mapping[str, float]) -> int:
    """Return how many devices of a node agents may have, without what others hold."""
    limits = [
        (node.resources.get(name, 0.0) - others.get(name, 0.0)) / amount
        for name, amount in pool.list_holdings(1).items()
    ]
    # Ray counts in parts of ten thousand.
    return math.floor(max(0.0, min(limits)) + 1e-4)


def count_others(
    nodes: Iterable[RayNode], actors: Iterable[SeenActor], now_s: float
) -> dict[str, dict[str, float]]:
    """Return what others hold on nodes, by id of the node and name of the resource.

    It is all that is not free there, less what actors of the cluster hold. Ray counts late, and an actor that
    begins has no node yet: what it holds may be anywhere.
    """
    own: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    somewhere: dict[str, float] = defaultdict(float)
    for actor in actors:
        if actor.node and (not actor.gone or now_s - (actor.ended_s or 0.0) < SETTLED_S):
            _add(own[actor.node], actor.holds)
        elif not actor.node and not actor.gone and now_s - actor.asked_s < STARTING_S:
            _add(somewhere, actor.holds)
    found: dict[str, dict[str, float]] = {}
    for node in nodes:
        found[node.id] = {}
        for name, amount in node.resources.items():
            held = max(0.0, amount - node.free.get(name, 0.0) - own[node.id][name])
            ours = min(held, somewhere[name])
            somewhere[name] -= ours
            found[node.id][name] = held - ours
    return found


def _add(amounts: dict[str, float], more: Mapping[str, float]) -> None:
    for name, amount in more.items():
        amounts[name] += amount


def describe_resources(pool: RayPool) -> str:
    """Return what an agent with one device asks of a node, in words."""
    words = [f"{amount:g} {name}" for name, amount in pool.list_holdings(1).items()]
    words += [f"accelerator {pool.accelerator}"] if pool.accelerator else []
    words += [f"label {name}={value}" for name, value in pool.labels.items()]
    return escape_line(", ".join(words))
