"""Checkpoints on storage: their names, their files and the elements of the state in them."""

import math
import re
from typing import Any, Literal, TypeAlias

import msgspec

from elastane.common.bounds import Count
from elastane.common.errors import FileDamage

SCHEMA = 1

MARKER = "COMPLETE"
MANIFEST = "manifest.json"
METADATA = ".metadata"
PLAIN = "plain.distcp"

SAVED_BY = "run"
"""The key of a manifest's ``plain`` with the run that has saved the checkpoint."""

WriteAttempt: TypeAlias = tuple[Count, Count]
"""An attempt to write a checkpoint: the term of the coordinator that orders it, and its number therein."""

UNORDERED: WriteAttempt = (0, 0)
"""The attempt that the members make themselves."""

NAME = re.compile(r"step-(\d{8,})(?:\.r([1-9]\d*))?")


def format_checkpoint_name(step: int, resumed: int = 0) -> str:
    """Return ``step-00001500``, or ``step-00001500.r2`` if the run has been resumed twice."""
    return f"step-{step:08d}" + (f".r{resumed}" if resumed else "")


def parse_checkpoint_age(name: str) -> tuple[int, int] | None:
    """Return ``(resumed, step)``, which sorts the checkpoints of a run by age; None: not a checkpoint.

    The number of resumes counts first: after a run has gone back to step 1000, its new step 1200 is newer
    than the abandoned step 1500.
    """
    found = NAME.fullmatch(name)
    return (int(found[2] or 0), int(found[1])) if found else None


def format_part_name(worker: int, process: int = 0) -> str:
    """Return the name of the file of a worker, or of one of its further processes."""
    return f"part-{worker}.{process}.distcp" if process else f"part-{worker}.distcp"


class TensorFacts(msgspec.Struct, frozen=True):
    """A whole tensor of the state.

    Args:
        dtype: as torch names it, such as ``float32``.
        itemsize: bytes of an element.
        stride: stride of the tensor in memory; dense, but possibly permuted (channels last).
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
        key: name of the tensor in the checkpoint, such as ``model.0.weight``.
        offsets: corner of the rectangle.
        sizes: sizes of the rectangle.
        offset: offset of the item (the bytes that ``torch.load`` reads) in the file, in bytes.
        length: length of the item, in bytes.
        raw_offset: offset of the elements themselves in the file, in bytes.
        checksum: XXH3-64 of the elements' bytes, as 16 hexadecimal digits.
    """

    key: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    offset: int
    length: int
    raw_offset: int
    checksum: str


class PlainPartItem(msgspec.Struct, frozen=True):
    """A value other than a tensor: one pickled item of the file `PLAIN`, which only foreign readers use."""

    path: tuple[str | int, ...]
    offset: int
    length: int


EVALUATION = "evaluation."
"""The prefix of the names of an evaluation's totals among the metrics of a checkpoint."""


class WrittenFile(msgspec.Struct, frozen=True):
    """A file as it was written: its size in bytes and XXH3-128, 32 hexadecimal digits."""

    bytes: int
    checksum: str


class PartFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file that one writer wrote.

    Args:
        checksum: XXH3-128 of the whole file, 32 hexadecimal digits as of ``xxh128sum``.
        tensors: the tensors of which it has elements, by key.
        items: in the order of the file.
    """

    name: str
    bytes: int
    checksum: str
    tensors: dict[str, TensorFacts] = {}
    items: tuple[PartItem, ...] = ()


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """``manifest.json``: the complete description of a checkpoint.

    Args:
        schema: version of the file's format.
        step: the last step that the state includes.
        resumed: how often the run had been resumed.
        created: UTC, ISO 8601.
        parts: every file except the manifest and the marker, including files without tensors.
        aliases: second names of tied tensors, mapped to the keys under which they are stored.
        metrics: values by which retention may choose, such as ``{"eval_loss": 2.1}``.
        plain: the state other than tensors, as JSON: hyperparameters, schedule, counters, the run.
        seconds: time from copying the state to writing the manifest.
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
        """The total size of all files except manifest and marker."""
        return sum(part.bytes for part in self.parts)

    @property
    def tensors(self) -> dict[str, TensorFacts]:
        """Every tensor, by key; the first part wins where parts disagree (see `catalog`)."""
        found: dict[str, TensorFacts] = {}
        for part in self.parts:
            for key, facts in part.tensors.items():
                found.setdefault(key, facts)
        return found


class CheckpointMarker(msgspec.Struct, frozen=True):
    """The last file of a checkpoint, which makes it valid: size in bytes and SHA-256 of ``manifest.json``."""

    bytes: int
    sha256: str


Condition: TypeAlias = Literal["complete", "unfinished", "damaged", "foreign"]
"""``complete``: marker, manifest and the sizes of all files agree. ``unfinished``: the marker is missing.
``damaged``: a file is missing or does not match. ``foreign``: this version does not know its schema."""


class CheckpointSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a checkpoint that can be determined without reading its data.

    Args:
        name: of its directory.
        state: see `Condition`.
        step: from its name.
        resumed: from its name.
        bytes: total size of its files, 0 if it has no manifest.
        created: time of creation, UTC; empty if it has no manifest.
        metrics: from its manifest.
        damages: why it is ``damaged`` or ``foreign``.
    """

    name: str
    state: Condition
    step: int
    resumed: int = 0
    bytes: int = 0
    created: str = ""
    metrics: dict[str, float] = {}
    damages: tuple[FileDamage, ...] = ()

    @property
    def age(self) -> tuple[int, int]:
        """A key that is larger for newer checkpoints of a run."""
        return self.resumed, self.step


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """The rules that choose the checkpoints to keep. Any one rule is enough; without rules all are kept.

    Args:
        last: number of the newest to keep.
        every: keep those of every this many steps.
        best: keep the best by a metric, such as ``("eval_loss", "min")``.
        origin: the checkpoint with which the current attempt began. It is always kept, because joiners still
            read it. Empty: the run began anew.
    """

    last: int | None = None
    every: int | None = None
    best: tuple[str, Literal["min", "max"]] | None = None
    origin: str = ""


class Deletion(msgspec.Struct, frozen=True):
    """A checkpoint to delete, and the reason."""

    name: str
    why: str
