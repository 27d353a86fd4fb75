"""The faults of a history: a plan drawn from its seed before it begins."""

from random import Random
from typing import TypeAlias

import msgspec

from elastane.run.protocol.layout import Layout
from tests.run.simulator.gang_faults import GangFault, PauseProcess
from tests.run.simulator.network import NetworkConditions
from tests.run.simulator.network_faults import BreakLink, CutControl, NetworkFault, PartMesh, SilentDeath
from tests.run.simulator.node_faults import NodeFault
from tests.run.simulator.reference_run import Shape
from tests.run.simulator.world import Pace

TRIGGERS = (
    *("Vote", "Vote", "Vote", "CommitRound", "CommitRound"),
    *(
        "Status",
        "PartialSumsReady",
        "SumsReady",
        "Published",
        "Fetch",
        "SendState",
        "LoadState",
        "Reduce",
        "TakeSums",
    ),
)
"""The actions and sent messages just before which a worker may die."""


USUAL = (6, 3, 2, 3, 6, 2, 1, 0.2)
STORMY = (8, 3, 1, 3, 8, 1, 0, 0)
"""The weight of each kind of fault, in the order of `Fault`."""


PROMPT_S = 0.03
"""With longer delays the reports of one fault arrive too far apart to be judged together."""


class Resize(msgspec.Struct, frozen=True, tag=True):
    at_s: float
    workers: int


class Drain(msgspec.Struct, frozen=True, tag=True):
    """A request to drain a worker; ``which`` selects a living worker, here and below."""

    at_s: float
    which: int


class Kill(msgspec.Struct, frozen=True, tag=True):
    at_s: float
    which: int


class Fuse(msgspec.Struct, frozen=True, tag=True):
    """A death after ``actions`` more actions from ``at_s`` on, between two of them."""

    at_s: float
    which: int
    actions: int


class Trigger(msgspec.Struct, frozen=True, tag=True):
    """A death before an action or an event of a kind from ``at_s`` on, after ``spared`` of that kind."""

    at_s: float
    which: int
    kind: str
    spared: int


class KillCoordinator(msgspec.Struct, frozen=True, tag=True):
    at_s: float
    absent_s: float


class Pause(msgspec.Struct, frozen=True, tag=True):
    """A SIGSTOP; the agent kills a worker that is silent for too long."""

    at_s: float
    which: int
    for_s: float


class LoseNode(msgspec.Struct, frozen=True, tag=True):
    """The end of all workers of a node at once: that of the worker that ``which`` selects."""

    at_s: float
    which: int


class StopRun(msgspec.Struct, frozen=True, tag=True):
    at_s: float


class RefuseStorage(msgspec.Struct, frozen=True, tag=True):
    """A time in which the worker cannot write: it has reached its quota or its limit of descriptors."""

    at_s: float
    which: int
    for_s: float


class SpoilChecks(msgspec.Struct, frozen=True, tag=True):
    """A faulty machine from ``at_s`` on: the worker's first gradients of each spot check are wrong."""

    at_s: float
    which: int


Fault: TypeAlias = (
    Resize
    | Drain
    | Kill
    | Fuse
    | Trigger
    | KillCoordinator
    | Pause
    | LoseNode
    | StopRun
    | RefuseStorage
    | SpoilChecks
    | NetworkFault
    | NodeFault
    | GangFault
)


class HistoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a history.

    Args:
        seed: the seed of all random choices.
        shape: the shape of the run.
        start: the number of workers at the beginning.
        max_workers: the limit of the run.
        faults: the faults, in order of time.
        echo: the probability that another death follows a death within a tenth of a second.
        slowest: the largest factor on a worker's durations.
        shared: peers on one node read each other's memory; otherwise values travel in the frames.
        spread: the number of nodes that the workers of one agent are on, in turn.
        nodes: the slots of each further node of a run on several.
        claims: coordinators claim unplanned generations, as they must on several nodes.
        skew_s: the largest error of the clock of a node, in either direction.
        early_parts: workers announce nodes of the tree that are complete before their last virtual rank.
        slowest_read_s: the longest time of a read of sums, values or state; 0: reads end at once.
    """

    seed: int
    shape: Shape
    start: int
    max_workers: int = 5
    faults: tuple[Fault, ...] = ()
    echo: float = 0.0
    slowest: float = 1.0
    shared: bool = False
    nodes: tuple[int, ...] = ()
    claims: bool = True
    skew_s: float = 0.0
    early_parts: bool = False
    slowest_read_s: float = 0.0
    conditions: NetworkConditions = NetworkConditions()
    pace: Pace = Pace()
    spread: int = 1

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites with bound data; none: data may move."""
        return tuple(sorted(set(self.shape.layout.rank_sites)))


def is_prompt(plan: HistoryPlan) -> bool:
    """Return whether all workers report a broken link within a quarter of a second of each other."""
    slow = any(
        isinstance(fault, KillCoordinator | Pause | PauseProcess | CutControl | SilentDeath)
        or (isinstance(fault, BreakLink | PartMesh) and fault.one_way)
        for fault in plan.faults
    )
    return not slow and plan.conditions.loss == 0.0 and plan.conditions.rare_s <= PROMPT_S


def build_layout(virtual_ranks: int, blocks: int, copies: int | None, parameters: int = 4) -> Layout:
    """Build a layout; its units are parameters if ``copies`` is None, else blocks, and the rest."""
    units = (parameters if copies is None else blocks) + 1
    return Layout(
        virtual_ranks=virtual_ranks,
        blocks=blocks,
        units=units,
        unit_bytes=(1,) * units,
        copies=copies,
        fetch_bytes=1 + virtual_ranks % 2,
        digest_every=2,
        compared=True,
    )


def draw_plan(seed: int, copies: int | None) -> HistoryPlan:
    """Draw a history of a run with this number of copies; a change here changes all seeds' histories."""
    chance = Random(seed)
    virtual_ranks, blocks = chance.randint(1, 12), chance.randint(1, 5)
    shape = Shape(
        layout=build_layout(virtual_ranks, blocks, copies, chance.randint(1, 5)),
        steps=chance.choice((4, 7, 10)),
        evaluate_every=chance.choice((0, 0, 1, 3)),
        evaluation_size=chance.choice((1, 3, 5)),
    )
    pace = chance.choice(
        (
            Pace(),
            Pace(),
            Pace(leaf_s=0.1, user_s=0.1),
            Pace(leaf_s=0.002, apply_s=0.03),
            Pace(leaf_s=0.6, user_s=0.3),
        )
    )
    conditions = chance.choice(
        (
            NetworkConditions(),
            NetworkConditions(loss=0.1, doubled=0.1),
            NetworkConditions(usual_s=0.02, rare_s=0.1),
            NetworkConditions(usual_s=0.0005, rare_s=0.001),
        )
    )
    start = chance.choice((1, 2, 3, 3, 4, 5))
    lasts_s = 0.3 + shape.steps * (0.03 + pace.user_s + virtual_ranks / start * pace.leaf_s)
    faults = sorted(
        (_draw_fault(chance, chance.random() * lasts_s) for _ in range(chance.choice((0, 2, 3, 4, 6, 10)))),
        key=lambda fault: fault.at_s,
    )
    return HistoryPlan(
        seed=seed,
        shape=shape,
        start=start,
        faults=tuple(faults),
        echo=chance.choice((0.0, 0.0, 0.2, 0.4)),
        slowest=chance.choice((1.0, 1.0, 3.0)),
        shared=chance.choice((False, True)),
        conditions=conditions,
        pace=pace,
    )


def draw_storm(seed: int, copies: int | None) -> HistoryPlan:
    """Draw a history with faults all the time; workers start fast."""
    chance = Random(seed)
    shape = Shape(
        layout=build_layout(chance.randint(1, 6), chance.randint(2, 4), copies, chance.randint(2, 4)),
        steps=12,
        evaluate_every=chance.choice((0, 1, 3)),
        evaluation_size=chance.choice((1, 3)),
    )
    faults = sorted(
        (_draw_fault(chance, 0.1 + chance.random() * 1.2, STORMY) for _ in range(16)),
        key=lambda fault: fault.at_s,
    )
    return HistoryPlan(
        seed=seed,
        shape=shape,
        start=chance.randint(3, 5),
        faults=tuple(faults),
        echo=0.1,
        shared=chance.choice((False, True)),
        conditions=chance.choice((NetworkConditions(), NetworkConditions(usual_s=0.01, rare_s=0.05))),
        pace=Pace(start_s=0.05),
    )


def add_slow_reads(plan: HistoryPlan) -> HistoryPlan:
    """Let reads of sums, values and state take time in a history, so that they end late and in any order."""
    chance = Random(f"reads of {plan.seed}")
    return msgspec.structs.replace(
        plan,
        shared=plan.shared or chance.random() < 0.7,
        early_parts=True,
        slowest_read_s=chance.choice((0.003, 0.03, 0.3)),
    )


def add_checkpoints(plan: HistoryPlan) -> HistoryPlan:
    """Add checkpoints to a history: at the end, and perhaps after every one or two steps."""
    shape = msgspec.structs.replace(
        plan.shape,
        layout=msgspec.structs.replace(plan.shape.layout, checkpoints=True),
        checkpoint_every=plan.seed % 3,
    )
    return msgspec.structs.replace(plan, shape=shape, faults=(*plan.faults, *_draw_refusals(plan)))


def _draw_refusals(plan: HistoryPlan) -> tuple[RefuseStorage, ...]:
    """Draw the workers that cannot write, independently of all other random choices of the history."""
    chance = Random(f"refusals of {plan.seed}")
    last_s = max((fault.at_s for fault in plan.faults), default=0.5)
    return tuple(
        RefuseStorage(chance.random() * last_s, chance.randrange(5), chance.choice((0.3, 5.0, 1e6, 1e6)))
        for _ in range(chance.choice((0, 1, 1, 2)))
    )


def _draw_fault(chance: Random, at_s: float, weights: tuple[float, ...] = USUAL) -> Fault:
    which = chance.randrange(5)
    match chance.choices(range(8), weights=weights)[0]:
        case 0:
            return Resize(at_s, chance.randint(2, 5))
        case 1:
            return Drain(at_s, which)
        case 2:
            return Kill(at_s, which)
        case 3:
            return Fuse(at_s, which, chance.randrange(40))
        case 4:
            return Trigger(at_s, which, chance.choice(TRIGGERS), chance.randrange(5))
        case 5:
            return KillCoordinator(at_s, chance.random() * 0.3)
        case 6:
            return Pause(at_s, which, chance.choice((0.05, 0.5, 2.0)))
        case _:
            return StopRun(at_s)
