"""Weights & Biases: offline in the run directory, or online with the user's key."""

import os
import shlex
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args
from zlib import crc32

from google.protobuf.message import DecodeError

from elastane.common.confined_files import ConfinedDirectory
from elastane.common.errors import StorageError
from elastane.run.trackers.metric_rows import MetricRow
from elastane.run.trackers.tracker import Outcome, TrackedRun

if TYPE_CHECKING:
    import wandb

PROJECT = "elastane"
STEP, ROW = "step", "_step"
"""The name of the run's step, and that of the row of W&B, which must grow with each row."""
WRITER_ENDS_S = 10.0
POLL_S = 0.1
NAME_TIME = "%Y%m%d_%H%M%S"
LONGEST_NUMBER = 40
Mode: TypeAlias = Literal["online", "offline"]
MODES: tuple[Mode, ...] = get_args(Mode)
HEADER_BYTES = 7
BLOCK_BYTES = 32768
RECORD = struct.Struct("<IHB")
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


class WandbStore:
    """The run in W&B that has our id.

    The client gives rows to a process of its own, which writes them to a file of each process that has fed
    it. Only what that file has counts as recorded; online, only the rows of it that the server has too.
    """

    def __init__(self) -> None:
        self._tracked: TrackedRun | None = None
        self._run: wandb.Run | None = None
        self._row = -1

    def open(self, run: TrackedRun) -> dict[str, int]:
        self._tracked = run
        self._abandon_run()
        self._wait_for_writers()
        # A killed client may not have uploaded all of its file.
        below = self._begin_run().starting_step if _choose_mode() == "online" else None
        recorded = self._read_last_steps(below)
        self._row = recorded.pop(ROW, -1)
        return recorded

    def write(self, rows: Sequence[MetricRow]) -> None:
        run = self._begin_run()
        for row in rows:
            # The metrics of an evaluation may come after those of its step, so a row has a number of its own.
            self._row = max(row.step, self._row + 1)
            run.log({STEP: row.step, **row.values}, step=self._row)

    def close(self, outcome: Outcome, step: int) -> None:
        if self._run is not None or not self.read_last_steps():
            run, self._run = self._begin_run(), None
            run.finish(exit_code=0 if outcome == "finished" else 1)
            # The client's process may still write.
            self._wait_for_writers()

    def read_last_steps(self) -> dict[str, int]:
        return self._read_last_steps(None)

    def _read_last_steps(self, below: int | None) -> dict[str, int]:
        """Return the last step of each name; that of the row is its number.

        Args:
            below: leave out rows of this number and more; None: none.
        """
        from wandb.proto.wandb_internal_pb2 import Record

        assert self._tracked is not None, "the store is open"
        last: dict[str, int] = {}
        for path in find_record_files(self._tracked.wandb, self._tracked.id):
            for content in read_wandb_records(path):
                try:
                    items = Record.FromString(content).history.item
                except DecodeError:
                    continue
                values = {item.key or ".".join(item.nested_key): item.value_json for item in items}
                step, row = _read_number(values.get(STEP, "")), _read_number(values.get(ROW, "")) or 0
                if step is not None and (below is None or row < below):
                    last |= {name: max(step, last.get(name, step)) for name in values}
                    last[ROW] = max(last.get(ROW, -1), row)
        return {name: step for name, step in last.items() if name == ROW or not name.startswith("_")}

    def describe_view(self) -> str:
        assert self._tracked is not None, "the store is open"
        if _choose_mode() != "offline":
            return (self._run and self._run.url) or "the page of the run in W&B"
        return f"wandb sync {shlex.quote(str(self._tracked.wandb))}/offline-run-*"

    def _begin_run(self) -> "wandb.Run":
        if self._run is None:
            import wandb

            assert self._tracked is not None, "the store is open"
            run = self._tracked
            run.wandb.mkdir(exist_ok=True)
            self._wait_for_new_name()
            settings = wandb.Settings(
                console="off",
                silent=True,
                reinit="create_new",
                x_disable_stats=True,
                disable_git=True,
                disable_code=True,
            )
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT") or PROJECT,
                id=run.id,
                name=run.name,
                dir=run.wandb.parent,
                mode=_choose_mode(),
                resume="allow",
                config=dict(run.parameters),
                settings=settings,
            )
            self._run.define_metric("*", step_metric=STEP)
        return self._run

    def _abandon_run(self) -> None:
        """End the client's process, which may be dead or hold back rows of an unknown number."""
        if self._run is not None:
            import wandb

            self._run = None
            wandb.teardown(exit_code=1)

    def _wait_for_writers(self) -> None:
        """Wait until no process writes to the files of the run: that of a killed client ends within moments.

        Raises:
            StorageError: one still writes.
        """
        assert self._tracked is not None, "the store is open"
        folder = self._tracked.wandb
        give_up = time.monotonic() + WRITER_ENDS_S
        while writers := find_writers(folder, self._tracked.id):
            if time.monotonic() > give_up:
                raise StorageError(f"process {min(writers)} still writes to {folder}")
            time.sleep(POLL_S)

    def _wait_for_new_name(self) -> None:
        """Wait until the clock gives the next file another name, which has the second of its beginning."""
        assert self._tracked is not None, "the store is open"
        files = find_record_files(self._tracked.wandb, self._tracked.id)
        while any(time.strftime(NAME_TIME) in path.parent.name for path in files):
            time.sleep(POLL_S)


def _choose_mode() -> Mode:
    chosen = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
    return next((mode for mode in MODES if mode == chosen), "offline")


def _read_number(text: str) -> int | None:
    return int(text) if len(text) < LONGEST_NUMBER and text.isascii() and text.isdecimal() else None


# -- the files of Weights & Biases on this machine: their records, and the processes that write them -----


def find_record_files(folder: Path, run_id: str) -> list[Path]:
    """Return the files of a run, in the order in which they were begun."""
    return sorted(folder.glob(f"*run-*-{run_id}/run-{run_id}.wandb"))


def read_wandb_records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file; a torn or damaged one costs the rest of its block.

    A file is a header and blocks of a fixed size. A record that does not fit its block is split.

    Raises:
        Malformed: the path does not lead to a regular file.
        OSError: it cannot be read.
    """
    with ConfinedDirectory(path.parents[1]).open(path) as file:
        skipped = HEADER_BYTES
        parts: list[bytes] = []
        while block := file.read(BLOCK_BYTES):
            for kind, piece in _split_block(block, skipped):
                if kind in (FULL, FIRST):
                    parts = []
                parts.append(piece)
                if kind in (FULL, LAST):
                    yield b"".join(parts)
            skipped = 0


def _split_block(block: bytes, place: int) -> Iterator[tuple[int, bytes]]:
    while place + RECORD.size <= len(block):
        checksum, size_bytes, kind = RECORD.unpack_from(block, place)
        begin = place + RECORD.size
        piece = block[begin : begin + size_bytes]
        if kind not in (FULL, FIRST, MIDDLE, LAST) or len(piece) < size_bytes:
            return
        if crc32(piece, crc32(bytes((kind,)))) != checksum:
            return
        yield kind, piece
        place = begin + size_bytes


def find_writers(folder: Path, run_id: str) -> set[int]:
    """Return the processes that have a file of a run open, as far as this user can see them."""
    inside, found = f"{folder.resolve()}/", set()
    for entry in Path("/proc").glob("[0-9]*"):
        # A process may end meanwhile, and some belong to other users.
        with suppress(OSError):
            for descriptor in (entry / "fd").iterdir():
                with suppress(OSError):
                    name = str(descriptor.readlink())
                    if name.startswith(inside) and name.endswith(f"/run-{run_id}.wandb"):
                        found.add(int(entry.name))
    return found
