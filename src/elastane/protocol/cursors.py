"""Where streams stand: one shard for each virtual rank, its cursor a part of what a step commits."""

from collections.abc import Mapping
from typing import Any

import msgspec

from elastane.protocol.sampling import MASK, derive_random_key, mix

SHARDED = 0x5A4D5EED0F57BEA3


class StreamPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where one shard stands.

    Args:
        epoch: from 0.
        position: samples of this epoch drawn from the shard.
        ended: it has no more in this epoch.
    """

    epoch: int = 0
    position: int = 0
    ended: bool = False


class Cursor(StreamPosition, frozen=True, omit_defaults=True):
    """A place with what the stream needs to go on from there, if it needs anything."""

    state: Any = None


_place, _cursor = msgspec.json.Decoder(StreamPosition), msgspec.json.Decoder(Cursor)


def encode_cursor(cursor: Cursor) -> str:
    return msgspec.json.encode(cursor).decode()


def decode_cursor(cursor: str) -> Cursor:
    return _cursor.decode(cursor)


def decode_positions(cursors: Mapping[int, str], virtual_ranks: int) -> tuple[StreamPosition, ...]:
    """Where each shard stands after the step that committed ``cursors``."""
    return tuple(
        _place.decode(cursors[rank]) if rank in cursors else StreamPosition() for rank in range(virtual_ranks)
    )


def find_next_positions(cursors: Mapping[int, str], virtual_ranks: int) -> tuple[StreamPosition, ...]:
    """Where each shard begins the step after: an epoch ends when all have ended, and the next one begins."""
    now = decode_positions(cursors, virtual_ranks)
    if all(place.ended for place in now):
        return (StreamPosition(epoch=now[0].epoch + 1),) * virtual_ranks
    return now


def hash_stream_sample(shard: int, position: int) -> int:
    """64-bit hash of a sample of a stream, as `sampling.hash_sample` is of a dataset index."""
    return mix(mix(shard ^ SHARDED) ^ position)


def derive_stream_key(seed: int, epoch: int, shard: int, position: int) -> int:
    """Seed of the random numbers drawn while one sample of a stream is made, ``0 <= key < 2**63``."""
    return mix(derive_random_key(seed ^ SHARDED, epoch, shard) ^ (position & MASK)) >> 1
