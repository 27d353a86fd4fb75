"""What a checkpoint on storage is: its name, its files and the elements of the state in them."""

import math
import re
from typing import Any, Literal, TypeAlias

import msgspec

SCHEMA = 1

MARKER = "COMPLETE"
MANIFEST = "manifest.json"
METADATA = ".metadata"
PLAIN = "plain.distcp"

NAME = re.compile(r"step-(\d{8,})(?:\.r([1-9]\d*))?")


def format_checkpoint_name(step: int, resumed: int = 0) -> str:
    """``step-00001500``; of a run resumed for the ``resumed``-th time ``step-00001500.r2``."""
    return f"step-{step:08d}" + (f".r{resumed}" if resumed else "")


def parse_checkpoint_age(name: str) -> tuple[int, int] | None:
    """``(resumed, step)``: sorts the checkpoints of a run by when they were made; None: not a checkpoint.

    The resume counts first: a run that went back to step 1000 writes a newer step 1200 than the step 1500 it
    turned away from.
    """
    found = NAME.fullmatch(name)
    return (int(found[2] or 0), int(found[1])) if found else None


def format_part_name(worker: int) -> str:
    return f"part-{worker}.distcp"


class TensorFacts(msgspec.Struct, frozen=True):
    """A whole tensor of the state.

    Args:
        dtype: as torch calls it, ``float32``.
        itemsize: bytes of an element.
        shape: of the tensor.
        stride: of the tensor as it lies in memory; dense, perhaps permuted (channels last).
    """

    dtype: str
    itemsize: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


class PartItem(msgspec.Struct, frozen=True):
    """One rectangle of a tensor, as one item of a part file.

    Args:
        key: name of the tensor in the checkpoint, ``model.0.weight``.
        start: first of its elements, in the memory order of the whole tensor.
        stop: one past the last.
        offsets: corner of the rectangle.
        sizes: of the rectangle.
        offset: in bytes, of the item (what ``torch.load`` reads) in the file.
        length: of the item, in bytes.
        raw_offset: in bytes, of the elements themselves in the file.
        checksum: XXH3-64 of the elements' bytes, 16 hexadecimal digits.
    """

    key: str
    start: int
    stop: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    offset: int
    length: int
    raw_offset: int
    checksum: str


class PlainPartItem(msgspec.Struct, frozen=True):
    """A value that is no tensor: one pickled item of the file `PLAIN`, for foreign readers only."""

    path: tuple[str | int, ...]
    offset: int
    length: int


EVALUATION = "evaluation."
"""Precedes the name of an evaluation's total among the metrics of a checkpoint."""


class WrittenFile(msgspec.Struct, frozen=True):
    """A file as it was written: its size in bytes and XXH3-128, 32 hexadecimal digits."""

    bytes: int
    checksum: str


class PartFile(msgspec.Struct, frozen=True, kw_only=True):
    """What one writer wrote.

    Args:
        name: of the file in the checkpoint's directory.
        bytes: its size.
        checksum: XXH3-128 of the whole file, 32 hexadecimal digits as of ``xxh128sum``.
        tensors: those with an element in it, by key.
        items: in the order of the file.
    """

    name: str
    bytes: int
    checksum: str
    tensors: dict[str, TensorFacts] = {}
    items: tuple[PartItem, ...] = ()


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a checkpoint is; ``manifest.json``.

    Args:
        schema: of this file.
        name: of the checkpoint and of its directory.
        step: the state is the one after this step.
        resumed: how often the run had been resumed before.
        created: UTC, ISO 8601.
        parts: every file but the manifest and the marker, those without tensors too.
        aliases: second names of tied tensors, with the key each is stored under.
        metrics: what retention may judge by, ``{"eval_loss": 2.1}``.
        plain: state that is no tensor, as JSON: hyperparameters, schedule, counters, spec, what is pinned.
        seconds: from taking the state to here.
    """

    schema: int = SCHEMA
    name: str
    step: int
    resumed: int = 0
    created: str
    parts: tuple[PartFile, ...]
    aliases: dict[str, str] = {}
    metrics: dict[str, float] = {}
    plain: dict[str, Any] = {}
    seconds: float = 0.0

    @property
    def bytes(self) -> int:
        """Of all files but manifest and marker."""
        return sum(part.bytes for part in self.parts)

    @property
    def tensors(self) -> dict[str, TensorFacts]:
        """Every tensor, by key; the first part wins where parts disagree (see `checkpointing.coverage`)."""
        found: dict[str, TensorFacts] = {}
        for part in self.parts:
            for key, facts in part.tensors.items():
                found.setdefault(key, facts)
        return found


class CheckpointMarker(msgspec.Struct, frozen=True):
    """The last file of a checkpoint, which makes it exist: size in bytes and SHA-256 of ``manifest.json``."""

    bytes: int
    sha256: str


class FileDamage(msgspec.Struct, frozen=True):
    """What is wrong with one file of a checkpoint."""

    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


State: TypeAlias = Literal["complete", "unfinished", "damaged", "foreign"]
"""``complete``: marker, manifest and the sizes of all files agree. ``unfinished``: without a marker.
``damaged``: something is missing or does not fit. ``foreign``: of a schema this version does not know."""


class CheckpointSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint at a glance, as far as can be told without reading its data.

    Args:
        name: of its directory.
        state: see `State`.
        step: in its name.
        resumed: in its name.
        bytes: of its files, 0 if it has no manifest.
        created: UTC, empty if it has no manifest.
        metrics: of its manifest.
        damages: why it is ``damaged`` or ``foreign``.
    """

    name: str
    state: State
    step: int
    resumed: int = 0
    bytes: int = 0
    created: str = ""
    metrics: dict[str, float] = {}
    damages: tuple[FileDamage, ...] = ()

    @property
    def age(self) -> tuple[int, int]:
        """Later checkpoints of a run have a larger one."""
        return self.resumed, self.step


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """Which checkpoints to keep. A checkpoint that any rule keeps is kept; without rules all are.

    Args:
        last: so many of the newest.
        every: those of every so many steps.
        best: the best by a metric, ``("eval_loss", "min")``.
        origin: the one that the present attempt of the run began with, which whoever joins still looks at; it
            is kept whatever the rules say. Empty: the run began anew.
    """

    last: int | None = None
    every: int | None = None
    best: tuple[str, Literal["min", "max"]] | None = None
    origin: str = ""


class Deletion(msgspec.Struct, frozen=True):
    """A checkpoint to be deleted, and why."""

    name: str
    why: str
