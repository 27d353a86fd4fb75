"""TensorBoard: a folder of event files, one for each process that has fed it."""

import os
import shlex
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING

from elastane.run.trackers.event_files import EventFile, read_event_records
from elastane.run.trackers.metric_rows import MetricRow
from elastane.run.trackers.tracker import Outcome, TrackedRun

PATTERN = "events.out.tfevents.*"
TIME_PLACE, TIME_DIGITS = 3, 10
VERSION = "brain.Event:2"
PARAMETERS, OUTCOME = "parameters", "outcome"
"""Names of texts, which are no metrics."""


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
