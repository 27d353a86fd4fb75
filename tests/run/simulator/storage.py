"""The simulated storage: the written checkpoints of a run, from which a later attempt may resume."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from elastane.run.nouns.membership import WorkerId
from tests.run.simulator.checkers import expect
from tests.run.simulator.reference_run import Shape, get_reference

UnitStates: TypeAlias = Mapping[int, tuple[int, int]]
"""The value and the optimizer state of each unit."""


@dataclass(frozen=True)
class StoredCheckpoint:
    """A complete checkpoint: the state of every unit after a step."""

    step: int
    units: UnitStates


@dataclass
class SimStorage:
    """The storage, which outlives every process.

    Args:
        shape: the shape of the run.
    """

    shape: Shape
    parts: dict[tuple[int, tuple[WorkerId, ...]], dict[WorkerId, UnitStates]] = field(default_factory=dict)

    def write(self, step: int, writers: tuple[WorkerId, ...], worker: WorkerId, record: UnitStates) -> None:
        """Write one writer's complete part.

        Raises:
            Violation: the part differs from the state of the reference run.
        """
        ideal = get_reference(self.shape)
        for unit, (value, state) in record.items():
            # The rest has no optimizer state; a joiner receives only its value.
            kept = unit == self.shape.rest or state == ideal.optimizer[step][unit]
            right = kept and value == ideal.parameters[step][unit]
            expect(right, f"worker {worker} writes unit {unit} of step {step} wrong")
        self.parts.setdefault((step, writers), {})[worker] = record

    def is_complete(self, step: int, writers: tuple[WorkerId, ...]) -> bool:
        """Return whether all writers have written their parts."""
        return set(self.parts.get((step, writers), {})) == set(writers)

    def find_newest(self) -> StoredCheckpoint | None:
        """Return the last complete checkpoint.

        Raises:
            Violation: a unit is missing although all writers have written.
        """
        found = None
        for (step, writers), parts in self.parts.items():
            if set(parts) == set(writers) and (found is None or step > found.step):
                units = {unit: pair for record in parts.values() for unit, pair in record.items()}
                missing = set(range(self.shape.layout.units)) - units.keys()
                expect(not missing, f"the checkpoint of step {step} lacks units {sorted(missing)}")
                found = StoredCheckpoint(step, units)
        return found
