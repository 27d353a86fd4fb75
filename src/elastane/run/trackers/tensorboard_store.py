"""TensorBoard: a folder of event files, one for each process that has fed it."""

import os
import shlex
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from elastane.common.confined_files import ConfinedDirectory
from elastane.run.trackers.metric_rows import MetricRow
from elastane.run.trackers.tracker import Outcome, TrackedRun

PATTERN = "events.out.tfevents.*"
TIME_PLACE, TIME_DIGITS = 3, 10
VERSION = "brain.Event:2"
PARAMETERS, OUTCOME = "parameters", "outcome"
"""Names of texts, which are no metrics."""
LENGTH = struct.Struct("<Q")
CHECKSUM = struct.Struct("<I")
LARGEST_RECORD_BYTES = 16 << 20
SUSPECT_BYTES = 4 << 20
"""The end of a file that a power cut may have damaged. To check all of a long file would take a minute."""


# Event files of TensorBoard: records in the format of TFRecord, written whole and read up to a torn one.


class EventFile:
    """A new event file; it holds only whole records, even if the disk refuses one.

    Args:
        path: of the file, which does not exist yet.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._end = 0

    def append(self, records: list[bytes]) -> None:
        """Append records, all or none.

        Raises:
            OSError: the disk refuses them.
        """
        rest = memoryview(b"".join(map(_frame_record, records)))
        size_bytes = len(rest)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            # A record behind a torn one could not be read.
            os.ftruncate(self._fd, self._end)
            os.lseek(self._fd, self._end, os.SEEK_SET)
            raise
        self._end += size_bytes

    def close(self) -> None:
        """Flush the file to the disk and close it.

        Raises:
            OSError: the disk has not taken it.
        """
        try:
            os.fsync(self._fd)
        finally:
            os.close(self._fd)


def read_event_records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file, up to the first one that is torn or damaged.

    Only the end of a file can be damaged by a kill or a power cut; it is checked byte by byte.

    Raises:
        Malformed: the path does not lead to a regular file.
        OSError: it cannot be read.
    """
    with ConfinedDirectory(path.parent).open(path) as file:
        suspect = os.fstat(file.fileno()).st_size - SUSPECT_BYTES
        while (record := _read_record(file, checked=file.tell() >= suspect)) is not None:
            yield record


def _read_record(file: BinaryIO, *, checked: bool) -> bytes | None:
    header = file.read(LENGTH.size)
    checksum = file.read(CHECKSUM.size)
    if len(checksum) < CHECKSUM.size or CHECKSUM.unpack(checksum)[0] != masked_crc32c(header):
        return None
    size_bytes = LENGTH.unpack(header)[0]
    if size_bytes > LARGEST_RECORD_BYTES:
        return None
    record = file.read(size_bytes)
    checksum = file.read(CHECKSUM.size)
    if len(checksum) < CHECKSUM.size:
        return None
    if checked and CHECKSUM.unpack(checksum)[0] != masked_crc32c(record):
        return None
    return record


def _frame_record(record: bytes) -> bytes:
    header = LENGTH.pack(len(record))
    return b"".join(
        (header, CHECKSUM.pack(masked_crc32c(header)), record, CHECKSUM.pack(masked_crc32c(record)))
    )


class TensorBoardStore:
    """The folder ``tensorboard`` of a run.

    TensorBoard reads the files in the order of their names, and a file up to its first torn record. So each
    process begins a new file, with a name that comes last.
    """

    def __init__(self) -> None:
        self._run: TrackedRun | None = None
        self._file: EventFile | None = None
        self._texts: dict[str, int] = {}

    def open(self, run: TrackedRun) -> dict[str, int]:
        self._run, self._file = run, None
        # Without its parents: a run directory that was moved must not come back.
        self._folder.mkdir(exist_ok=True)
        last = self._read_names()
        self._texts = {name: last[name] for name in (PARAMETERS, OUTCOME) if name in last}
        return _leave_out_texts(last)

    def write(self, rows: Sequence[MetricRow]) -> None:
        self._open_file().append([_encode_row(row) for row in rows])

    def close(self, outcome: Outcome, step: int) -> None:
        # An interrupted run goes on.
        if outcome != "interrupted" and self._texts.get(OUTCOME, -1) < step:
            self._open_file().append([_encode_text(OUTCOME, outcome, step)])
            self._texts[OUTCOME] = step
        if self._file is not None:
            self._file.close()
            self._file = None

    def read_last_steps(self) -> dict[str, int]:
        return _leave_out_texts(self._read_names())

    def describe_view(self) -> str:
        return f"tensorboard --logdir {shlex.quote(str(self._folder))}"

    @property
    def _folder(self) -> Path:
        assert self._run is not None, "the store is open"
        return self._run.tensorboard

    def _read_names(self) -> dict[str, int]:
        """Return the last step of each name, those of texts included."""
        last: dict[str, int] = {}
        for path in sorted(self._folder.glob(PATTERN)):
            for record in read_event_records(path):
                try:
                    event = Event.FromString(record)
                except DecodeError:
                    break
                for value in event.summary.value:
                    last[value.tag] = max(event.step, last.get(value.tag, event.step))
        return last

    def _open_file(self) -> EventFile:
        if self._file is None:
            assert self._run is not None, "the store is open"
            newest = max(map(_read_name_time, self._folder.glob(PATTERN)), default=0)
            seconds = max(int(time.time()), newest + 1)
            name = f"events.out.tfevents.{seconds:0{TIME_DIGITS}d}.{socket.gethostname()}.{os.getpid()}"
            records = [Event(wall_time=time.time(), file_version=VERSION).SerializeToString()]
            if PARAMETERS not in self._texts:
                records.append(_encode_text(PARAMETERS, _format_table(self._run.parameters), 0))
            file = EventFile(self._folder / name)
            file.append(records)
            self._file, self._texts[PARAMETERS] = file, 0
        return self._file


def _leave_out_texts(last: Mapping[str, int]) -> dict[str, int]:
    return {name: step for name, step in last.items() if name not in (PARAMETERS, OUTCOME)}


def _read_name_time(path: Path) -> int:
    text = path.name.split(".")[TIME_PLACE]
    return int(text) if text.isascii() and text.isdecimal() and len(text) == TIME_DIGITS else 0


def _encode_row(row: MetricRow) -> bytes:
    values = [Summary.Value(tag=name, simple_value=value) for name, value in row.values.items()]
    event = Event(wall_time=row.time, step=row.step, summary=Summary(value=values))
    return bytes(event.SerializeToString())


def _encode_text(tag: str, text: str, step: int) -> bytes:
    tensor = TensorProto(
        dtype=DT_STRING,
        tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
        string_val=[text.encode(errors="replace")],
    )
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    value = Summary.Value(tag=tag, tensor=tensor, metadata=metadata)
    event = Event(wall_time=time.time(), step=step, summary=Summary(value=[value]))
    return bytes(event.SerializeToString())


def _format_table(parameters: Mapping[str, str]) -> str:
    rows = [f"| {name} | {value.replace('|', '/')} |" for name, value in parameters.items()]
    return "\n".join(["| parameter | value |", "|---|---|", *rows])
