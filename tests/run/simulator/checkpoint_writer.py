"""A simulated worker's work for checkpoints: it writes its copy a little later, if storage accepts it."""

from typing import Literal

import msgspec

from elastane.run.nouns.checkpoints import format_checkpoint_name
from elastane.run.nouns.control import CheckpointKept, CheckpointPart, PublishCheckpoint, WriteAgain
from elastane.run.protocol import actions, events
from elastane.run.protocol.tree import expand_spans
from tests.run.simulator.process import WorkerProcess
from tests.run.simulator.reports import Reporter
from tests.run.simulator.storage import UnitStates
from tests.run.simulator.world import WorkerWorld

RETRY_S = 1.0
REMEMBERED_PARTS = 8


class CheckpointWriter:
    """The checkpoint writer of one worker.

    Args:
        worker: the worker.
        world: the parts that the worker can reach.
        reporter: keeps the parts that it reports.

    Attributes:
        refused_until_s: until then storage refuses the worker's writes.
    """

    def __init__(self, worker: WorkerProcess, world: WorkerWorld, reporter: Reporter) -> None:
        self.worker = worker
        self._world, self._reporter = world, reporter
        self._pending: tuple[actions.TakeSnapshot, UnitStates] | None = None
        self.refused_until_s = 0.0

    @property
    def refused(self) -> bool:
        return self._world.clock.now < self.refused_until_s

    def write_again(self, message: WriteAgain) -> None:
        """Write the last state again."""
        blocks = tuple(sorted(expand_spans(message.blocks)))
        self.worker.handle(events.RewriteRequested(message.writers, blocks, message.attempt))

    def copy(self, snapshot: actions.TakeSnapshot) -> None:
        shape, memory = self._world.shape, self.worker.memory
        if snapshot.settled and not snapshot.blocks:
            self._report_part(_make_part(snapshot, "abandoned"))
            return
        units = {unit for block in snapshot.blocks for unit in shape.list_units(block)} | {shape.rest}
        record = {}
        for unit in units:
            state = memory.optimizer[unit]
            if state is None:
                raise AssertionError(f"worker {self.worker.worker} is to copy unit {unit}, which it lacks")
            record[unit] = (memory.parameters[unit], state)
        self._pending = (snapshot, record)
        if snapshot.settled:
            self.write_snapshot()
            return
        took_s = self.worker.draw_duration(self._world.pace.leaf_s)
        self.worker.schedule(took_s, lambda: self.worker.handle(events.SnapshotTaken(snapshot.request)))

    def write_snapshot(self) -> None:
        """Write the last snapshot: its round has committed."""
        if self._pending is None:
            return
        (snapshot, record), self._pending = self._pending, None
        if not snapshot.blocks:
            return
        part = _make_part(snapshot, "writing")
        self._report_part(part)
        took_s = self.worker.draw_duration(10 * self._world.pace.leaf_s)
        self.worker.schedule(took_s, lambda: self._write(part, record))

    def publish(self, order: PublishCheckpoint) -> None:
        """Report whether a checkpoint is complete."""
        whole = self._world.storage.is_complete(order.step, order.writers)
        kept = CheckpointKept(
            worker=self.worker.worker, name=order.name, step=order.step, error="" if whole else "a part lacks"
        )
        self.worker.schedule(0.01, lambda: self._world.send_to_coordinator(kept))

    def _write(self, part: CheckpointPart, record: UnitStates) -> None:
        if not any(
            (known.name, known.attempt) == (part.name, part.attempt) for known in self._reporter.parts
        ):
            return  # a later attempt has taken its place
        refused = self.refused
        if refused:
            self.worker.schedule(RETRY_S, lambda: self._write(part, record))
            self._report_part(msgspec.structs.replace(part, state="failing", error="storage refuses it"))
        else:
            self._world.storage.write(part.step, part.writers, self.worker.worker, record)
            self._report_part(msgspec.structs.replace(part, state="written"))
        if self.worker.member.storage_refused != refused:
            self.worker.handle(events.StorageRefused(refused))

    def _report_part(self, part: CheckpointPart) -> None:
        others = [known for known in self._reporter.parts if known.name != part.name]
        self._reporter.parts = (*others, part)[-REMEMBERED_PARTS:]
        self.worker.report()


def _make_part(snapshot: actions.TakeSnapshot, state: Literal["writing", "abandoned"]) -> CheckpointPart:
    return CheckpointPart(
        name=format_checkpoint_name(snapshot.step),
        step=snapshot.step,
        writers=snapshot.writers,
        state=state,
        attempt=snapshot.attempt,
    )
