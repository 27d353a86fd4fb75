"""The records of a run that a controller keeps for machines without a shared directory, as they travel.

The directory of the machine in charge is the original. Its records go to the controller in parts, fenced by
the term of its coordinator. Results, which any machine of the run may have, need no fence.
"""

import re
from typing import Annotated

import msgspec

from elastane.common.bodies import AnswerBody, RequestBody

APPENDED = ("ledger.lost.jsonl", "ledger.jsonl", "events.jsonl")
"""Records to which a run appends lines."""
ENDPOINT = "endpoint.json"
REPLACED = (
    "secret",
    "certificate.pem",
    "run.json",
    "recipe.yaml",
    "trackers.json",
    "attempt.json",
    "metrics.json",
    "CARD.md",
    "report.html",
    ENDPOINT,
)
"""Records that a run replaces, in the order in which they are sent: the last one says that all are there."""
PRIVATE = ("secret", "certificate.pem")

AT_ONCE_BYTES = 2 << 20
"""The most content of one request, which is longer in Base64."""
MOST_PARTS = 64
LARGEST_APPENDED_BYTES, LARGEST_REPLACED_BYTES = 16 << 30, 256 << 20
LARGEST_LOG_BYTES = 64 << 20
"""The end of a longer log stays on its machine."""
LARGEST_RESULT_BYTES = 1 << 40

_LOG = re.compile(r"logs/[A-Za-z0-9][A-Za-z0-9.-]{0,127}\.log")
_PLAIN = r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}"
_ARTIFACT = re.compile(rf"artifacts/{_PLAIN}/{_PLAIN}")
_MODEL = re.compile(rf"{_PLAIN}\.(safetensors|json|txt|jinja|model|md)")
_OWN = re.compile(r"(record-store|address.*)\.json")
"""Files of one machine."""


class RecordPart(RequestBody, frozen=True, kw_only=True):
    """A part of a record.

    Args:
        name: of its file in the run directory, with slashes.
        offset: of its first byte. Bytes that the controller has from there on are replaced.
        content: in Base64.
        whole: the record is sent anew, and takes the place of the former one with its last part. An empty one
            removes it.
        end: it is the last part of such a record.
    """

    name: Annotated[str, msgspec.Meta(max_length=300)]
    offset: Annotated[int, msgspec.Meta(ge=0)] = 0
    content: Annotated[bytes, msgspec.Meta(max_length=AT_ONCE_BYTES)] = b""
    whole: bool = False
    end: bool = False


class NewRecords(RequestBody, frozen=True, kw_only=True):
    """Parts of records, in order.

    Args:
        term: of the coordinator that sends records other than results.
    """

    term: Annotated[int, msgspec.Meta(ge=0)] = 0
    parts: Annotated[tuple[RecordPart, ...], msgspec.Meta(max_length=MOST_PARTS)]


class KeptRecord(AnswerBody, frozen=True, kw_only=True):
    """A record that the controller keeps.

    Args:
        size: in bytes.
        changed_us: when it was last sent, in microseconds since 1970 by the clock of the controller.
    """

    name: str
    size: int
    changed_us: int


class RecordContent(AnswerBody, frozen=True, kw_only=True):
    """A part of a record.

    Args:
        content: in Base64.
        size: of the whole record, in bytes.
    """

    content: bytes
    size: int


def is_fenced(name: str) -> bool:
    """Return whether only the machine in charge may change a record."""
    return name in APPENDED or name in REPLACED


def is_log(name: str) -> bool:
    return _LOG.fullmatch(name) is not None


def is_appended(name: str) -> bool:
    """Return whether parts may be appended to a record."""
    return name in APPENDED or is_log(name)


def is_result(name: str) -> bool:
    """Return whether a name is that of a log, of an artifact, or of a file of the finished model."""
    if is_fenced(name) or _OWN.fullmatch(name):
        return False
    return any(kind.fullmatch(name) for kind in (_LOG, _ARTIFACT, _MODEL))


def find_limit_bytes(name: str) -> int:
    """Return the size limit of a record."""
    if name in APPENDED:
        return LARGEST_APPENDED_BYTES
    if is_fenced(name):
        return LARGEST_REPLACED_BYTES
    return LARGEST_LOG_BYTES if is_log(name) else LARGEST_RESULT_BYTES
