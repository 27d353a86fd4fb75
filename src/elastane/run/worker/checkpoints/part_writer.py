"""The thread that writes a worker's parts of checkpoints during the training."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable

import msgspec

from elastane.common.errors import StorageError
from elastane.run.checkpoints.catalog import Catalog
from elastane.run.nouns.control import CheckpointPart, PublishCheckpoint
from elastane.run.worker.checkpoints.part_encoding import EncodedPart
from elastane.run.worker.checkpoints.part_records import PartRecord, PartReports, name_record

WRITER_NICE = 10
LONGEST_WAIT_S = 60.0
"""The longest wait for a write without progress; then the worker abandons the new checkpoint."""

FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 30.0

EXCUSED_S = 600.0
"""How long others write in place of a worker after its storage has refused a part."""


class CopiedPart(msgspec.Struct, frozen=True):
    """A part that is copied but not written yet.

    Args:
        file: the copy, laid out as the file.
        record: the record of the part, without size and checksum.
    """

    checkpoint: str
    file: EncodedPart
    record: PartRecord
    report: CheckpointPart


class PartWriter:
    """Writes parts and publishes checkpoints, one after the other, in a thread of low priority.

    Memory holds only one copy: the next copy waits until the part is written (`make_way`).

    Args:
        publish: publishes a checkpoint; called from the thread.
        report_refusal: called with True when storage refuses a part, with False when it accepts one again.
        process: the number of this process in its worker.
    """

    def __init__(
        self,
        worker: int,
        catalog: Catalog,
        reports: PartReports,
        *,
        publish: Callable[[PublishCheckpoint], None],
        report_refusal: Callable[[bool], None],
        process: int = 0,
    ) -> None:
        self._record = name_record(worker, process)
        self._catalog, self._reports = catalog, reports
        self._publish, self._report_refusal = publish, report_refusal
        self._state = threading.Condition()
        self._busy = self._stop_retrying = False
        self._refused_at_s: float | None = None
        self._queue: deque[CopiedPart | PublishCheckpoint] = deque()
        threading.Thread(target=self._run, name="elastane-writer", daemon=True).start()

    def write(self, part: CopiedPart) -> None:
        """Queue a part for writing."""
        with self._state:
            self._busy, self._stop_retrying = True, False
            self._queue.append(part)
            self._state.notify_all()

    def publish(self, order: PublishCheckpoint) -> None:
        """Queue the publication of a checkpoint; all its parts are written."""
        with self._state:
            if order not in self._queue:
                self._queue.append(order)
            self._state.notify_all()

    def is_idle(self) -> bool:
        """Return whether the memory of the copy is free: no part is being written or retried."""
        with self._state:
            return not self._busy

    def make_way(self) -> bool:
        """Wait until the memory of the copy is free; abandon a part that storage refuses.

        Returns:
            False if the part is still being written after `LONGEST_WAIT_S`.
        """
        with self._state:
            self._stop_retrying = True
            self._state.notify_all()
            free = self._state.wait_for(lambda: not self._busy, LONGEST_WAIT_S)
            self._stop_retrying = False
            return free

    def leave_to_others(self) -> None:
        """Abandon a part that storage refuses, because others write this state; contribute again later."""
        with self._state:
            since, waiting = self._refused_at_s, self._busy
            self._stop_retrying = waiting
            self._state.notify_all()
        if since is not None and not waiting and time.monotonic() - since >= EXCUSED_S:
            self._refused_at_s = None
            self._report_refusal(False)

    def _run(self) -> None:
        # Users may have started the run with an even lower priority, which only root may raise.
        own = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, own, max(WRITER_NICE, os.getpriority(os.PRIO_PROCESS, own)))
        while True:
            with self._state:
                self._state.wait_for(lambda: bool(self._queue))
                task = self._queue.popleft()
            if isinstance(task, CopiedPart):
                self._write_with_retries(task)
                with self._state:
                    self._busy = any(isinstance(waiting, CopiedPart) for waiting in self._queue)
                    self._state.notify_all()
            else:
                self._publish(task)

    def _write_with_retries(self, part: CopiedPart) -> None:
        wait_s = FIRST_RETRY_S
        while True:
            try:
                self._reports.report(self._write(part))
            except StorageError as error:
                self._refused_at_s = time.monotonic()
                self._report_refusal(True)
                self._reports.report(msgspec.structs.replace(part.report, state="failing", error=error.what))
            else:
                if self._refused_at_s is not None:
                    self._refused_at_s = None
                    self._report_refusal(False)
                return
            with self._state:
                if self._state.wait_for(lambda: self._stop_retrying, wait_s):
                    break
            wait_s = min(2 * wait_s, LONGEST_RETRY_S)
        why = "storage refused it until the next one was due"
        self._reports.report(msgspec.structs.replace(part.report, state="abandoned", error=why))

    def _write(self, part: CopiedPart) -> CheckpointPart:
        start_s, start_cpu_s = time.perf_counter(), time.thread_time()
        written = self._catalog.write(part.checkpoint, part.file.name, part.file)
        record = msgspec.structs.replace(part.record, part=part.file.describe(written))
        self._catalog.write(part.checkpoint, self._record, [msgspec.json.encode(record)])
        return msgspec.structs.replace(
            part.report,
            state="written",
            bytes=written.bytes,
            write_s=time.perf_counter() - start_s,
            cpu_s=time.thread_time() - start_cpu_s,
        )
