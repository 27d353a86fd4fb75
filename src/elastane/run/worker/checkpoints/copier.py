"""The thread that copies a worker's part of the state; the vote of the round waits for it."""

import mmap
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import msgspec
import torch

from elastane.run.nouns.checkpoints import PartFile, format_checkpoint_name, format_part_name
from elastane.run.nouns.control import CheckpointPart
from elastane.run.protocol.actions import TakeSnapshot
from elastane.run.worker.checkpoints.part_encoding import EncodedPart
from elastane.run.worker.checkpoints.part_records import PartRecord, PartReports
from elastane.run.worker.checkpoints.part_writer import LONGEST_WAIT_S, CopiedPart, PartWriter
from elastane.run.worker.checkpoints.state_slices import collect_scalars, list_slices
from elastane.run.worker.state.training_state import TrainingState

TOUCHED_AT_ONCE = 8 << 20
ENVELOPES = 1.02
"""An upper bound for the size of a file, as a multiple of the size of its elements."""


class PlainState(msgspec.Struct, frozen=True):
    """The plain values of the state at the moment of a snapshot."""

    plain: dict[str, Any]
    metrics: dict[str, float]


class _CopyTask(msgspec.Struct, frozen=True):
    snapshot: TakeSnapshot
    described: PlainState
    at_s: float


class StateCopier:
    """Copies this worker's part of a snapshot into its staging buffer.

    Args:
        part_writer: receives the committed copies.
        resumed: the number of times that the run has been resumed.
        describe: returns the plain values of the state; called by the thread that handles the round.
        report_copied: called with the number of the request for a snapshot after its copy.
        process: the number of this process in its worker.
    """

    def __init__(
        self,
        worker: int,
        state: TrainingState,
        part_writer: PartWriter,
        reports: PartReports,
        *,
        resumed: int,
        describe: Callable[[], PlainState],
        report_copied: Callable[[int], None],
        process: int = 0,
    ) -> None:
        self._worker, self._state, self._resumed = worker, state, resumed
        self._process = process
        self._part_writer, self._reports = part_writer, reports
        self._describe, self._report_copied = describe, report_copied
        self._staging = StagingBuffer()
        self._pending: CopiedPart | None = None
        self._tasks: SimpleQueue[_CopyTask | Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._run, name="elastane-copier", daemon=True).start()

    def prepare(self, share: float, then: Callable[[], None]) -> None:
        """Reserve memory for a share of the state, then call a function from the copier's thread.

        Args:
            share: this worker's share of the state, from 0 to 1.
        """

        def reserve() -> None:
            if self._part_writer.is_idle():
                self._staging.reserve(int(share * self._state.nbytes))
            then()

        self._tasks.put(reserve)

    def copy_snapshot(self, snapshot: TakeSnapshot) -> None:
        """Describe the plain values of the state, and queue the copy of a snapshot."""
        self._tasks.put(_CopyTask(snapshot, self._describe(), time.monotonic()))

    def refuse(self, snapshot: TakeSnapshot, why: str) -> None:
        """Report that this worker cannot contribute its part to a checkpoint of the settled state."""
        report = self._start_report(snapshot)
        self._reports.report(msgspec.structs.replace(report, state="abandoned", error=why))

    def commit(self) -> None:
        """Pass the last copy to the part writer: its round has committed."""
        part, self._pending = self._pending, None
        if part is None:
            return
        self._part_writer.write(part)
        # From now on this worker does not leave before the part is written.
        self._reports.report(msgspec.structs.replace(part.report, state="writing"))

    def _run(self) -> None:
        while True:
            task = self._tasks.get()
            if isinstance(task, _CopyTask):
                self._copy(task)
            else:
                task()

    def _copy(self, task: _CopyTask) -> None:
        snapshot = task.snapshot
        self._pending = None
        if snapshot.blocks:
            report = self._start_report(snapshot)
            if self._part_writer.make_way():
                self._pending = self._copy_blocks(task, report)
                report = self._pending.report
            else:
                why = f"the checkpoint before it has not been written after {LONGEST_WAIT_S:.0f} s"
                report = msgspec.structs.replace(report, state="abandoned", error=why)
            self._reports.report(report)
        else:
            self._part_writer.leave_to_others()
        self._report_copied(snapshot.request)
        if snapshot.settled:
            self.commit()

    def _copy_blocks(self, task: _CopyTask, report: CheckpointPart) -> CopiedPart:
        start_s, blocks = time.perf_counter(), task.snapshot.blocks
        slices = list(list_slices(self._state, blocks, replicated=self._process == 0))
        file = EncodedPart(format_part_name(self._worker, self._process), slices)
        self._staging.stage(file)
        record = PartRecord(
            PartFile(name=file.name, bytes=0, checksum=""),
            collect_scalars(self._state, blocks),
            task.described.plain,
            task.described.metrics,
        )
        copy_s = time.perf_counter() - start_s
        report = msgspec.structs.replace(report, copy_s=copy_s, began_s=task.at_s)
        return CopiedPart(report.name, file, record, report)

    def _start_report(self, snapshot: TakeSnapshot) -> CheckpointPart:
        return CheckpointPart(
            name=format_checkpoint_name(snapshot.step, self._resumed),
            step=snapshot.step,
            writers=snapshot.writers,
            state="copied",
            attempt=snapshot.attempt,
        )


# -- the memory for the copy of a checkpoint: reserved once, reused, and touched before a copy needs it --


class StagingBuffer:
    """Contiguous host memory, as large as the largest part of the state that this worker has copied."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def reserve(self, nbytes: int) -> None:
        """Reserve memory for a file of state; the kernel takes longer to provide a page than to copy it.

        Args:
            nbytes: the size of the state, without the envelopes.
        """
        self._grow_to(int(nbytes * ENVELOPES))

    def stage(self, file: EncodedPart) -> None:
        """Copy a file into the buffer; the copy is valid until the next call."""
        self._grow_to(file.bytes)
        file.lay_out(self._memory)

    def _grow_to(self, nbytes: int) -> None:
        if self._memory.numel() >= nbytes:
            return
        self._memory = torch.empty(0, dtype=torch.uint8)  # freed before the larger one is allocated
        # Page-aligned, so that the disk can read the memory without another copy in the kernel.
        pages = mmap.mmap(-1, nbytes)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)
        self._memory = torch.frombuffer(pages, dtype=torch.uint8)
        for start in range(0, nbytes, TOUCHED_AT_ONCE):
            self._memory[start : start + TOUCHED_AT_ONCE].zero_()
