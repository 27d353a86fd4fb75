"""A worker's part of checkpoints: copied under a step, written behind the following ones.

Two threads. The copier copies, which the vote of a round waits for; the writer, at low priority, writes.
There is one copy: a new one waits for the writer (back-pressure), and takes its place if storage refuses it.
"""

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any

import msgspec

from elastane.api.checkpoints import FileDamage, Manifest, PartFile, Retention, checkpoint_name, part_name
from elastane.api.control import CheckpointKept, CheckpointPart, PublishCheckpoint
from elastane.api.errors import Damaged, ElastaneError, NoSuchFile, StorageError
from elastane.api.untrusted_data import Decoder, Malformed
from elastane.protocol.actions import TakeSnapshot
from elastane.runtime.checkpoints.contents import collect_scalars, find_aliases, list_slices
from elastane.runtime.checkpoints.model_description import KEY, describe_model
from elastane.runtime.checkpoints.part_encoding import EncodedPart
from elastane.runtime.checkpoints.publication import publish_checkpoint
from elastane.runtime.checkpoints.staging_buffer import StagingBuffer
from elastane.runtime.finished.adapters import describe_adapter
from elastane.runtime.state.state import TrainingState
from elastane.storage.catalog import LARGEST_MANIFEST_BYTES, Catalog

WRITER_NICE = 10
LONGEST_WAIT_S = 60.0
"""For a write that makes no progress; then the new checkpoint is given up, and training goes on."""

REMEMBERED_PARTS = 8
"""So many may be written before the first of them is published, should the coordinator be away."""

FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 30.0

EXCUSED_S = 600.0
"""How long a worker whose storage has refused a part is left out, while others can write in its place."""


class PartRecord(msgspec.Struct, frozen=True):
    """What the publisher must know of a part; beside it on the storage until the checkpoint is published.

    Args:
        part: the file.
        scalars: optimizer state that is no tensor, of the parameters that begin in it.
        plain: the rest of the state, the same in every part.
        metrics: likewise.
    """

    part: PartFile
    scalars: dict[str, dict[str, Any]]
    plain: dict[str, Any]
    metrics: dict[str, float]


_part_record_in = Decoder[PartRecord](PartRecord, at_most_bytes=LARGEST_MANIFEST_BYTES)


class PlainState(msgspec.Struct, frozen=True):
    """State that is no tensor, at the moment of a snapshot."""

    plain: dict[str, Any]
    metrics: dict[str, float]


class _Copy(msgspec.Struct, frozen=True):
    snapshot: TakeSnapshot
    described: PlainState
    at_s: float


class _Part(msgspec.Struct, frozen=True):
    """One part on its way to the storage."""

    name: str
    file: EncodedPart
    record: PartRecord
    report: CheckpointPart


def name_record(worker: int) -> str:
    return f"part-{worker}.json"


class CheckpointWriter:
    """Takes one worker's part in every checkpoint.

    Args:
        worker: its number.
        state: of the training.
        catalog: where checkpoints lie.
        resumed: how often the run has been resumed.
        retention: what is kept when a newer one is there.
        describe: the state that is no tensor; called from the reactor's thread.
        snapped: takes the ticket of a copy that is made.
        kept: takes the news of a published checkpoint.
        refused: told True when storage refuses a part, and False when it takes one again.
        changed: `parts` have changed.

    Attributes:
        parts: how far this worker's parts of the last few checkpoints are, oldest first.
    """

    def __init__(
        self,
        worker: int,
        state: TrainingState,
        catalog: Catalog,
        *,
        resumed: int,
        retention: Retention,
        describe: Callable[[], PlainState],
        snapped: Callable[[int], None],
        kept: Callable[[CheckpointKept], None],
        changed: Callable[[], None],
        refused: Callable[[bool], None] = lambda _refused: None,
    ) -> None:
        self._worker, self._state, self._catalog = worker, state, catalog
        # Here, because publishing happens beside the training.
        self._adapter = describe_adapter(state.model)
        self._resumed, self._retention = resumed, retention
        self._describe, self._snapped, self._kept, self._changed = describe, snapped, kept, changed
        self._say_refused = refused
        self._attempt = 0
        self._staging = StagingBuffer()
        self._pending: _Part | None = None
        self._way = threading.Condition()
        self._busy = self._give_up = False
        self._refused_at_s: float | None = None
        self._writes: deque[_Part | PublishCheckpoint] = deque()
        self._copies: SimpleQueue[_Copy | Callable[[], None]] = SimpleQueue()
        self._saying = threading.Lock()
        self.parts: tuple[CheckpointPart, ...] = ()
        threading.Thread(target=self._copier, name="elastane-copier", daemon=True).start()
        threading.Thread(target=self._writer, name="elastane-writer", daemon=True).start()

    # -- from the reactor and the coordinator --------------------------------------------------------------

    def prepare(self, share: float, then: Callable[[], None]) -> None:
        """Have memory ready for a share of the state, and only then go on.

        Args:
            share: of the whole state, 0 to 1.
            then: called from the copier's thread.
        """

        def provide() -> None:
            if self._idle():
                self._staging.provide(int(share * self._state.nbytes))
            then()

        self._copies.put(provide)

    def take(self, snapshot: TakeSnapshot) -> None:
        """Copy what the snapshot names; the rest of the state is taken down at once."""
        self._copies.put(_Copy(snapshot, self._describe(), time.monotonic()))

    def refuse(self, snapshot: TakeSnapshot, why: str) -> None:
        """Say that this worker cannot take its part in a checkpoint of the settled state."""
        name = checkpoint_name(snapshot.step, self._resumed)
        self._say(
            CheckpointPart(
                name=name,
                step=snapshot.step,
                writers=snapshot.writers,
                state="abandoned",
                error=why,
                attempt=self._attempt,
            )
        )

    def begin_again(self, attempt: int) -> bool:
        """Whether this attempt at the last checkpoint is a new one; the next snapshot belongs to it."""
        newer = attempt > self._attempt
        self._attempt = max(attempt, self._attempt)
        return newer

    def committed(self) -> None:
        """The round of the last snapshot cannot be undone: write it."""
        part, self._pending = self._pending, None
        if part is None:
            return
        with self._way:
            self._busy, self._give_up = True, False
            self._writes.append(part)
            self._way.notify_all()
        # From here on it must be waited for, should this worker be about to leave.
        self._say(msgspec.structs.replace(part.report, state="writing"))

    def publish(self, order: PublishCheckpoint) -> None:
        """Make a checkpoint exist whose parts are all written."""
        with self._way:
            if order not in self._writes:
                self._writes.append(order)
            self._way.notify_all()

    # -- copying -------------------------------------------------------------------------------------------

    def _copier(self) -> None:
        while True:
            job = self._copies.get()
            if isinstance(job, _Copy):
                self._copy(job)
            else:
                job()

    def _copy(self, job: _Copy) -> None:
        snapshot = job.snapshot
        self._pending = None
        if snapshot.blocks:
            name = checkpoint_name(snapshot.step, self._resumed)
            report = CheckpointPart(
                name=name,
                step=snapshot.step,
                writers=snapshot.writers,
                state="copied",
                attempt=self._attempt if snapshot.settled else 0,
            )
            if self._make_way():
                begun = time.perf_counter()
                file = EncodedPart(part_name(self._worker), list(list_slices(self._state, snapshot.blocks)))
                self._staging.take(file)
                record = PartRecord(
                    PartFile(name=file.name, bytes=0, checksum=""),
                    collect_scalars(self._state, snapshot.blocks),
                    job.described.plain,
                    job.described.metrics,
                )
                copy_s = time.perf_counter() - begun
                report = msgspec.structs.replace(report, copy_s=copy_s, began_s=job.at_s)
                self._pending = _Part(name, file, record, report)
            else:
                why = f"the checkpoint before it has not been written after {LONGEST_WAIT_S:.0f} s"
                report = msgspec.structs.replace(report, state="abandoned", error=why)
            self._say(report)
        else:
            self._try_after_a_while()
        self._snapped(snapshot.ticket)
        if snapshot.settled:
            self.committed()

    def _try_after_a_while(self) -> None:
        """Others write what this worker could not. Give up what it still tries, and take part again later."""
        with self._way:
            since, waiting = self._refused_at_s, self._busy
            self._give_up = waiting
            self._way.notify_all()
        if since is not None and not waiting and time.monotonic() - since >= EXCUSED_S:
            self._refused_at_s = None
            self._say_refused(False)

    def _idle(self) -> bool:
        with self._way:
            return not self._busy

    def _make_way(self) -> bool:
        """Wait until the memory is free; a write that storage refuses is given up."""
        with self._way:
            self._give_up = True
            self._way.notify_all()
            free = self._way.wait_for(lambda: not self._busy, LONGEST_WAIT_S)
            self._give_up = False
            return free

    # -- writing -------------------------------------------------------------------------------------------

    def _writer(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), WRITER_NICE)
        while True:
            with self._way:
                self._way.wait_for(lambda: bool(self._writes))
                job = self._writes.popleft()
            if isinstance(job, _Part):
                self._write_until_it_is(job)
                with self._way:
                    self._busy = any(isinstance(waiting, _Part) for waiting in self._writes)
                    self._way.notify_all()
            else:
                self._publish(job)

    def _write_until_it_is(self, part: _Part) -> None:
        wait_s = FIRST_RETRY_S
        while True:
            try:
                self._say(self._written(part))
            except StorageError as error:
                self._refused_at_s = time.monotonic()
                self._say_refused(True)
                self._say(msgspec.structs.replace(part.report, state="failing", error=error.what))
            else:
                if self._refused_at_s is not None:
                    self._refused_at_s = None
                    self._say_refused(False)
                return
            with self._way:
                if self._way.wait_for(lambda: self._give_up, wait_s):
                    break
            wait_s = min(2 * wait_s, LONGEST_RETRY_S)
        why = "storage refused it until the next one was due"
        self._say(msgspec.structs.replace(part.report, state="abandoned", error=why))

    def _written(self, part: _Part) -> CheckpointPart:
        begun, cpu = time.perf_counter(), time.thread_time()
        written = self._catalog.write(part.name, part.file.name, part.file)
        record = msgspec.structs.replace(part.record, part=part.file.part(written))
        self._catalog.write(part.name, name_record(self._worker), [msgspec.json.encode(record)])
        return msgspec.structs.replace(
            part.report,
            state="written",
            bytes=written.bytes,
            write_s=time.perf_counter() - begun,
            cpu_s=time.thread_time() - cpu,
        )

    def _say(self, report: CheckpointPart) -> None:
        with self._saying:
            others = [part for part in self.parts if part.name != report.name]
            self.parts = (*others, report)[-REMEMBERED_PARTS:]
        self._changed()

    # -- publishing ----------------------------------------------------------------------------------------

    def _publish(self, order: PublishCheckpoint) -> None:
        kept = CheckpointKept(worker=self._worker, name=order.name, step=order.step)
        try:
            manifest = self._published(order)
        except ElastaneError as error:
            self._kept(msgspec.structs.replace(kept, error=error.what))
            return
        self._kept(msgspec.structs.replace(kept, bytes=manifest.bytes, metrics=manifest.metrics))
        self._tidy(order)

    def _published(self, order: PublishCheckpoint) -> Manifest:
        if (there := self._existing(order.name)) is not None:
            return there
        records = [self._record(order.name, writer) for writer in order.writers]
        merged = {name: some for record in records for name, some in record.scalars.items()}
        plain = records[0].plain
        manifest = Manifest(
            name=order.name,
            step=order.step,
            resumed=self._resumed,
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            parts=tuple(record.part for record in records),
            aliases={f"model.{name}": f"model.{first}" for name, first in find_aliases(self._state).items()},
            metrics=records[0].metrics,
            seconds=self._since_s(order.name),
            plain={
                **plain,
                "scalars": merged,
                KEY: msgspec.to_builtins(describe_model(self._state, self._adapter)),
            },
        )
        return publish_checkpoint(
            self._catalog, manifest, self._foreign(json.loads(plain["rest"])["groups"], merged)
        )

    def _since_s(self, name: str) -> float:
        """From the copy of this worker's part on; 0 if it has none."""
        return next((time.monotonic() - part.began_s for part in self.parts if part.name == name), 0.0)

    def _existing(self, name: str) -> Manifest | None:
        """A publisher before this one may have died after its work and before its report."""
        try:
            return self._catalog.load_manifest(name)
        except (NoSuchFile, Damaged):
            return None

    def _record(self, name: str, writer: int) -> PartRecord:
        file = name_record(writer)
        try:
            return _part_record_in(self._catalog.storage.read(f"{name}/{file}"))
        except Malformed as error:
            raise Damaged(name, (FileDamage(file, str(error)),)) from error

    def _foreign(
        self, groups: Sequence[dict[str, Any]], plain: dict[str, dict[str, Any]]
    ) -> dict[tuple[str | int, ...], Any]:
        """Hyperparameters and scalars under the names that `get_optimizer_state_dict` gives them."""
        found: dict[tuple[str | int, ...], Any] = {}
        layout = self._state.layout
        for number, group in enumerate(groups):
            path = ("optimizer", "param_groups", number)
            found |= {(*path, key): value for key, value in group.items()}
            mine = [
                extent.name for extent, of in zip(layout.extents, layout.groups, strict=True) if of == number
            ]
            found[*path, "params"] = mine
        for name, some in plain.items():
            found |= {("optimizer", "state", name, key): value for key, value in some.items()}
        return found

    def _tidy(self, order: PublishCheckpoint) -> None:
        parts = {part_name(writer) for writer in order.writers}
        try:
            for file in self._catalog.storage.list_files(order.name):
                # Records, and what a writer left behind whose part another one wrote.
                if file.startswith("part-") and file not in parts:
                    self._catalog.storage.delete(f"{order.name}/{file}")
            self._catalog.prune(self._retention, trusted=frozenset({order.name}))
        except StorageError:
            # What is left over costs room, not correctness; the next checkpoint tidies up again.
            return
