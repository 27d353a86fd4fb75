"""The files of a run that a client on a machine without its directory can read over the network."""

import re

import msgspec

from elastane.common.untrusted_data import Decoder
from elastane.run.nouns.membership import NodeAddress

FILES_PATH, MARK_PATH = "/files", "/mark"
AT_ONCE_BYTES = 4 << 20
LARGEST_LISTING_BYTES = 4 << 20

_GROWING = frozenset({"ledger.jsonl", "ledger.lost.jsonl", "events.jsonl"})
_REPLACED = frozenset({"run.json", "endpoint.json", "metrics.json", "CARD.md", "recipe.yaml"})
_LOG = re.compile(r"logs/[A-Za-z0-9][A-Za-z0-9.-]{0,127}\.log")


class RunListing(msgspec.Struct, frozen=True):
    """The files of a run, and the addresses of its machines.

    Args:
        files: their sizes in bytes, by their names in the run directory.
        nodes: at which the agents of the run answer.
    """

    files: dict[str, int]
    nodes: tuple[NodeAddress, ...]


decode_listing: Decoder[RunListing] = Decoder(RunListing, at_most_bytes=LARGEST_LISTING_BYTES)


def is_shown(name: str) -> bool:
    """Return whether clients read this file; those with secrets, weights and checkpoints are not shown."""
    return name in _REPLACED or is_growing(name)


def is_growing(name: str) -> bool:
    """Return whether a run appends to this file; it replaces the others."""
    return name in _GROWING or _LOG.fullmatch(name) is not None
