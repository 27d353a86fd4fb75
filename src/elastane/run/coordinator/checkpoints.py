"""The coordinator's knowledge of checkpoints: those in progress, and the time of the next one."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import MappingProxyType

from elastane.run.nouns.checkpoints import UNORDERED, WriteAttempt
from elastane.run.nouns.control import BlockSpan, CheckpointPart
from elastane.run.nouns.membership import WorkerId
from elastane.run.nouns.spec import CheckpointPolicy

FIRST_S = 60.0
"""The time until the first automatic checkpoint, which shows the cost of one."""

PRIOR_S = 4 * 3600.0
"""The assumed time without interruption before the run; the run's own record outweighs it later."""

LARGEST_SHARE = 0.01
"""The share of the time that automatic checkpoints may take."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """An attempt to write the last checkpoint again.

    Args:
        attempt: the attempt; one has only this division of the blocks, however late an order arrives.
        blocks: the blocks that each writer writes, by writer; together they are all blocks.
        asked_s: when the writers were last asked, in seconds.
    """

    attempt: WriteAttempt
    blocks: Mapping[WorkerId, tuple[int, ...]]
    asked_s: float

    @property
    def writers(self) -> tuple[WorkerId, ...]:
        return tuple(sorted(self.blocks))


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The coordinator's knowledge of checkpoints, besides the workers' reports. Times are in seconds.

    Args:
        due: when the coordinator requests the next one; infinity: only on request.
        request: the coordinator asked for a checkpoint after step ``request[0]``, last at ``request[1]``.
        publishing: the name of the checkpoint to publish, its publisher, and the time of the request.
        existing: the names of published checkpoints.
        announced: the kind of event and the name of a checkpoint, for each failure in the event log.
        cost_s: an upper bound of the training time that the last one took.
        step: the step of the newest published checkpoint.
        wanted_after: a user has asked for a checkpoint of this step or a later one.
        failing: since when storage has refused a part of a checkpoint, by name.
        refusing: the workers that storage has refused for long, since the last published checkpoint.
        rewrite: the last attempt of this coordinator to rewrite the last checkpoint.
    """

    due: float = math.inf
    request: tuple[int, float] | None = None
    publishing: tuple[str, WorkerId, float] | None = None
    existing: frozenset[str] = frozenset()
    announced: frozenset[tuple[str, str]] = frozenset()
    cost_s: float = 0.0
    step: int = 0
    wanted_after: int = 0
    failing: Mapping[str, float] = field(default_factory=dict)
    refusing: frozenset[WorkerId] = frozenset()
    rewrite: Rewrite | None = None


def compute_interval_s(
    policy: CheckpointPolicy, cost_s: float, undisturbed_s: float, interruptions: int
) -> float:
    """Return the seconds from one checkpoint to the next.

    For an automatic policy it is the first-order optimum, ``sqrt(2 C M)`` (Young, CACM 1974), where ``C`` is
    the cost of a checkpoint and ``M`` the mean time between interruptions. Checkpoints never take more than a
    hundredth of the time.

    Args:
        cost_s: the cost of the last checkpoint; 0: none was made yet.
        undisturbed_s: the seconds since the run began.
    """
    if policy.every_s is not None:
        return policy.every_s
    if not policy.auto:
        return math.inf
    if cost_s == 0.0:
        return FIRST_S
    between_s = (PRIOR_S + undisturbed_s) / (1 + interruptions)
    return max(math.sqrt(2 * cost_s * between_s), cost_s / LARGEST_SHARE)


def compute_first_due(policy: CheckpointPolicy | None, now: float) -> float:
    return math.inf if policy is None else now + compute_interval_s(policy, 0.0, 0.0, 0)


@dataclass(frozen=True)
class CheckpointInProgress:
    """A checkpoint of which at least one worker has reported a part.

    Args:
        writers: the workers that must write a part.
        parts: the reported parts, by worker.
        lost: the writers that died before they had written.
        attempt: the latest attempt that any worker has reported.
    """

    name: str
    step: int
    writers: tuple[WorkerId, ...]
    parts: Mapping[WorkerId, CheckpointPart]
    lost: tuple[WorkerId, ...]
    attempt: WriteAttempt = UNORDERED

    @cached_property
    def unable(self) -> frozenset[WorkerId]:
        """The writers that have not written and cannot write, at least now."""
        refused = {w for w, part in self.parts.items() if part.state in {"failing", "abandoned"}}
        return frozenset({*self.lost, *refused})

    @cached_property
    def unable_for_good(self) -> frozenset[WorkerId]:
        """The unable writers that will not try again."""
        return frozenset(w for w in self.unable if w in self.lost or self.parts[w].state == "abandoned")

    @cached_property
    def written(self) -> bool:
        return all(w in self.parts and self.parts[w].state == "written" for w in self.writers)

    @cached_property
    def hopeless(self) -> str:
        """Why the checkpoint can never become complete; empty while it can."""
        if self.lost and not self.written:
            return "its writers died: " + ", ".join(f"worker {worker}" for worker in self.lost)
        return next((part.error for part in self.parts.values() if part.state == "abandoned"), "")

    @cached_property
    def refused(self) -> str:
        """The error of the storage that refuses a part; empty if none refuses."""
        return next((part.error for part in self.parts.values() if part.state == "failing"), "")

    @cached_property
    def cost_s(self) -> float:
        """An upper bound of the training time it took: the longest copy and its processor time."""
        return max(part.copy_s + part.cpu_s for part in self.parts.values())


def list_spanned(spans: Iterable[BlockSpan]) -> Iterator[int]:
    """Yield the blocks in spans; a span that does not follow the one before it counts as empty."""
    end = 0
    for start, stop in spans:
        yield from range(max(start, end), stop)
        end = max(end, stop)


@lru_cache(maxsize=4)  # The coordinator asks after every report.
def divide_blocks(
    held: tuple[tuple[WorkerId, tuple[BlockSpan, ...]], ...], blocks: int
) -> Mapping[WorkerId, tuple[int, ...]]:
    """Return the blocks that each writer of the last state writes, each block by one of its holders.

    Args:
        held: the able workers in order, each with the blocks that it holds.

    Returns:
        The blocks by writer; empty: some block has no holder.
    """
    holders: dict[int, list[WorkerId]] = {}
    for worker, spans in held:
        for block in list_spanned(spans):
            holders.setdefault(block, []).append(worker)
    chosen: dict[WorkerId, list[int]] = {}
    for block in range(blocks):
        if block not in holders:
            return MappingProxyType({})
        writer = min(holders[block], key=lambda worker: len(chosen.get(worker, ())))
        chosen.setdefault(writer, []).append(block)
    return MappingProxyType({writer: tuple(some) for writer, some in sorted(chosen.items())})


def group_by_checkpoint(
    reported: Mapping[WorkerId, Iterable[CheckpointPart]], gone: frozenset[WorkerId]
) -> tuple[CheckpointInProgress, ...]:
    """Return the checkpoints that any worker has begun, oldest first.

    Args:
        reported: the parts in each worker's last report.
        gone: the workers that cannot write any more.
    """
    begun: dict[int, dict[WorkerId, CheckpointPart]] = {}
    for worker, parts in reported.items():
        for part in parts:
            # A copy from a step that was restarted is void. All workers that voted name the same writers.
            if part.state != "copied":
                begun.setdefault(part.step, {})[worker] = part
    return tuple(_build_in_progress(begun[step], gone) for step in sorted(begun))


def _build_in_progress(
    begun: Mapping[WorkerId, CheckpointPart], gone: frozenset[WorkerId]
) -> CheckpointInProgress:
    attempt = max(part.attempt for part in begun.values())
    parts = {worker: part for worker, part in begun.items() if part.attempt == attempt}
    any_part = next(iter(parts.values()))
    lost = tuple(
        worker
        for worker in any_part.writers
        if worker in gone and (worker not in parts or parts[worker].state != "written")
    )
    return CheckpointInProgress(any_part.name, any_part.step, any_part.writers, parts, lost, attempt)
