"""The results of the processes of a gang: a worker of several processes, each with a part of the state.

A gang has one `elastane.run.protocol.member_machine.MemberMachine`, in its process 0. What the machine learns
of sums, values and state is true of every process, so an event counts when all of them have posted it. Block
b of the gang is block b of each of its processes.
"""

import hashlib
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from typing import Generic, TypeAlias, TypeVar

import msgspec

from elastane.run.protocol.events import (
    Applied,
    Computed,
    Measured,
    PartialSumsFinal,
    Reduced,
    RoundEntered,
    ScriptEnded,
    SnapshotTaken,
    StateLoaded,
    StorageRefused,
    SumsTaken,
    ValuesTaken,
)
from elastane.run.protocol.messages import PartialSum, State
from elastane.run.protocol.tree import Span


class StateRestored(msgspec.Struct, frozen=True, tag=True):
    """A process has read its part of the state from the checkpoint of the run's start."""

    state: State


Result: TypeAlias = (
    RoundEntered
    | Computed
    | PartialSumsFinal
    | Reduced
    | SumsTaken
    | ValuesTaken
    | StateLoaded
    | Measured
    | Applied
    | ScriptEnded
    | SnapshotTaken
    | StorageRefused
    | StateRestored
)
"""An event that every process of a gang posts."""


class GangDisagreement(Exception):
    """Two processes of a gang have contradicted each other.

    Args:
        means: the meaning of it for the run.
        do: the remedy.
    """

    def __init__(
        self,
        what: str,
        means: str = "the script took different branches in the processes of one worker; the step was not "
        "committed",
        do: str = "decide by values that are the same in all processes, not by RANK or LOCAL_RANK",
    ) -> None:
        super().__init__(what)
        self.means, self.do = means, do


Item = TypeVar("Item")


class Deliveries(Generic[Item]):
    """Messages of peers, and losses of peers, which the protocol learns of in their order.

    A message that refers to memory waits until every process of the gang can read it. Memory that a process
    has mapped outlives its owner, so it is asked about once.

    Args:
        processes: the number of processes, at least 2.
    """

    def __init__(self, processes: int) -> None:
        self._others = frozenset(range(1, processes))
        self._waiting: deque[Item] = deque()
        # The processes that have not answered the delivery of the first item; None: it is not under way.
        self._missing: set[int] | None = None
        self._mapped: set[Hashable] = set()
        self._memory: frozenset[Hashable] = frozenset()
        self._is_readable = True

    def add(self, item: Item) -> None:
        """Add what has come last."""
        self._waiting.append(item)

    def find_next(self) -> Item | None:
        """Return the first item, to deliver it now; None: nothing waits, or its delivery has begun."""
        return self._waiting[0] if self._waiting and self._missing is None else None

    def are_mapped(self, memory: frozenset[Hashable] | None) -> bool:
        """Return whether all processes have mapped this memory; None: it is of the message alone."""
        return memory is not None and memory <= self._mapped

    def begin(self, memory: frozenset[Hashable] | None) -> None:
        """Wait for the answers of the other processes to the delivery of the first item."""
        self._missing, self._memory = set(self._others), memory or frozenset()

    def answer(self, process: int, *, is_readable: bool) -> bool:
        """Take the answer of a process; return whether it was the last one."""
        assert self._missing is not None, "a process answers a delivery once"
        self._missing.discard(process)
        self._is_readable = self._is_readable and is_readable
        return not self._missing

    def refuse(self) -> None:
        """Note that process 0 cannot read the memory of the first item."""
        self._is_readable = False

    def take(self) -> tuple[Item, bool]:
        """Remove the first item; return it, and whether all processes can read its memory."""
        is_readable, self._is_readable = self._is_readable, True
        if is_readable:
            self._mapped |= self._memory
        self._missing, self._memory = None, frozenset()
        return self._waiting.popleft(), is_readable


class GangResults:
    """Combines the results of the processes of one gang.

    Args:
        processes: the number of processes, at least 2.
        sharing: the number of processes that compute each virtual rank together.
    """

    def __init__(self, processes: int, sharing: int = 1) -> None:
        self._processes, self._sharing = processes, sharing
        self._leaves: dict[int, dict[int, Computed]] = {}
        self._equal: dict[Result, set[int]] = {}
        self._measured: dict[int, dict[int, Measured]] = {}
        self._entered: dict[int, RoundEntered] = {}
        self._refused: set[int] = set()
        self._assignment = 0
        # The processes that have announced a part of a block.
        self._final: dict[tuple[int, tuple[Span, ...]], set[int]] = {}
        self._slots: dict[tuple[Span, ...], dict[int, int]] = {}

    def add(self, process: int, result: Result) -> list[Result]:
        """Add a result of a process; return the events of the gang that follow.

        Raises:
            GangDisagreement: another process has posted something else.
        """
        match result:
            case Computed():
                return self._add_leaf(process, result)
            case PartialSumsFinal():
                return self._add_final(process, result)
            case Measured():
                return self._add_measured(process, result)
            case RoundEntered():
                return self._add_entered(process, result)
            case StorageRefused(refused):
                return self._add_refusal(process, refused=refused)
            case _:
                return [result] if self._is_last(process, result) else []

    def find_slots(self, spans: tuple[Span, ...]) -> tuple[int, ...]:
        """Return the slot of a final part on each process."""
        slots = self._slots[spans]
        return tuple(slots[process] for process in range(self._processes))

    def _is_last(self, process: int, result: Result) -> bool:
        posted = self._equal.setdefault(result, set())
        posted.add(process)
        if len(posted) < self._processes:
            return False
        del self._equal[result]
        return True

    def _add_leaf(self, process: int, computed: Computed) -> list[Result]:
        """Return the virtual rank when all processes that compute it together have posted it."""
        rank = computed.leaf.virtual_rank
        posted = self._leaves.setdefault(rank, {})
        for other, theirs in posted.items():
            # Equal bits: a loss that is not a number is not equal to itself.
            if msgspec.msgpack.encode(theirs) != msgspec.msgpack.encode(computed):
                raise GangDisagreement(
                    f"process {other} and process {process} have computed virtual rank {rank} together, and "
                    "their losses or the values that they have added differ",
                    means="they have the same microbatch, and each of them has its whole loss",
                    do="give all of them the same output, as output_layouts=Replicate() does, and the same "
                    "random numbers",
                )
        posted[process] = computed
        if len(posted) < self._sharing:
            return []
        del self._leaves[rank]
        return [computed]

    def _add_entered(self, process: int, entered: RoundEntered) -> list[Result]:
        for other, theirs in self._entered.items():
            if theirs != entered:
                raise GangDisagreement(
                    f"process {process} is in a round to {entered.kind}, process {other} in "
                    f"one to {theirs.kind}"
                )
        self._entered[process] = entered
        if len(self._entered) < self._processes:
            return []
        self._entered.clear()
        return [entered]

    def _add_refusal(self, process: int, *, refused: bool) -> list[Result]:
        """Return the change for the gang: storage refuses its part while it refuses that of a process."""
        before = bool(self._refused)
        self._refused = self._refused | {process} if refused else self._refused - {process}
        return [] if bool(self._refused) == before else [StorageRefused(not before)]

    def _add_final(self, process: int, final: PartialSumsFinal) -> list[Result]:
        """Return the parts of blocks that are final on all processes now.

        Processes learn at different moments that there are more virtual ranks to compute, so they may
        announce their parts in other groups.
        """
        if final.assignment < self._assignment:
            return []
        if final.assignment > self._assignment:
            self._assignment = final.assignment
            self._final.clear()
        complete: dict[tuple[PartialSum, ...], list[int]] = {}
        for part in final.parts:
            self._slots.setdefault(part.spans, {})[process] = part.slot
        for block in final.blocks:
            parts = tuple(part for part in final.parts if self._add_part(process, block, part))
            if parts:
                complete.setdefault(parts, []).append(block)
        return [
            PartialSumsFinal(final.assignment, tuple(blocks), tuple(map(self._name_slot, parts)))
            for parts, blocks in complete.items()
        ]

    def _add_part(self, process: int, block: int, part: PartialSum) -> bool:
        posted = self._final.setdefault((block, part.spans), set())
        posted.add(process)
        return len(posted) == self._processes

    def _name_slot(self, part: PartialSum) -> PartialSum:
        return PartialSum(part.spans, self._slots[part.spans][0])

    def _add_measured(self, process: int, measured: Measured) -> list[Result]:
        posted = self._measured.setdefault(measured.request, {})
        posted[process] = measured
        if len(posted) < self._processes:
            return []
        del self._measured[measured.request]
        return [combine_measurements([posted[number] for number in range(self._processes)])]


def combine_measurements(measured: Sequence[Measured]) -> Measured:
    """Return the norms and the digests of a gang, from those of its processes in their order.

    Raises:
        GangDisagreement: a value outside the blocks differs between the processes.
    """
    first = measured[0]
    for process, other in enumerate(measured):
        if other.replicated != first.replicated:
            names = sorted(first.replicated.keys() | other.replicated.keys())
            what = next(name for name in names if first.replicated.get(name) != other.replicated.get(name))
            raise GangDisagreement(f"process 0 and process {process} differ in {what}")
    _check_copies([one.copies for one in measured])
    return Measured(
        first.request,
        {block: tuple(chain.from_iterable(one.norms[block] for one in measured)) for block in first.norms},
        _combine_digests([one.digests for one in measured]),
        first.replicated,
    )


def _check_copies(copies: Sequence[Mapping[str, str]]) -> None:
    """Check that parts of the model that several processes have are the same in all of them."""
    known: dict[str, tuple[int, str]] = {}
    for process, digests in enumerate(copies):
        for name, digest in digests.items():
            other, same = known.setdefault(name, (process, digest))
            if digest != same:
                raise GangDisagreement(
                    f"process {other} and process {process} have different copies of {name}",
                    means="their gradients of it differ, so they train different models",
                    do="initialise the model alike in all processes, and divide this module by "
                    "parallelize_module too, such as by SequenceParallel()",
                )


def _combine_digests(digests: Sequence[Mapping[int, tuple[str, str]]]) -> dict[int, tuple[str, str]]:
    found = {}
    for block in sorted(set[int]().union(*digests)):
        pairs = [some.get(block, ("", "")) for some in digests]
        values, states = ([pair[place] for pair in pairs] for place in (0, 1))
        found[block] = _combine(values), _combine(states)
    return found


def _combine(digests: Sequence[str]) -> str:
    """Return one digest of several; empty if all are."""
    return hashlib.sha256(" ".join(digests).encode()).hexdigest() if any(digests) else ""
