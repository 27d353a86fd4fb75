"""The positions of a stream's shards, one for each virtual rank; each step commits their cursors."""

from collections.abc import Mapping
from typing import Any

import msgspec

from elastane.run.protocol.sampling import MASK, derive_random_key, mix

SHARDED = 0x5A4D5EED0F57BEA3


class StreamPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """The position in one shard.

    Args:
        epoch: the number of the epoch, from 0.
        position: the number of samples drawn from the shard in this epoch.
        ended: the shard has no more samples in this epoch.
    """

    epoch: int = 0
    position: int = 0
    ended: bool = False


class Cursor(StreamPosition, frozen=True, omit_defaults=True):
    """A position, with the state that the stream needs to continue from there, if any."""

    state: Any = None


_position_decoder, _cursor_decoder = msgspec.json.Decoder(StreamPosition), msgspec.json.Decoder(Cursor)


def encode_cursor(cursor: Cursor) -> str:
    return msgspec.json.encode(cursor).decode()


def decode_cursor(cursor: str) -> Cursor:
    return _cursor_decoder.decode(cursor)


def decode_positions(cursors: Mapping[int, str], virtual_ranks: int) -> tuple[StreamPosition, ...]:
    """Return the position in each shard after the step that committed ``cursors``."""
    return tuple(
        _position_decoder.decode(cursors[rank]) if rank in cursors else StreamPosition()
        for rank in range(virtual_ranks)
    )


def find_next_positions(cursors: Mapping[int, str], virtual_ranks: int) -> tuple[StreamPosition, ...]:
    """Return where each shard begins the next step; an epoch ends when all shards have ended."""
    positions = decode_positions(cursors, virtual_ranks)
    if all(position.ended for position in positions):
        return (StreamPosition(epoch=positions[0].epoch + 1),) * virtual_ranks
    return positions


def hash_stream_sample(shard: int, position: int) -> int:
    """Return the 64-bit hash of a sample of a stream; `sampling.hash_sample` hashes a dataset index."""
    return mix(mix(shard ^ SHARDED) ^ position)


def derive_stream_key(seed: int, epoch: int, shard: int, position: int) -> int:
    """Return the seed of the random numbers of one sample of a stream, ``0 <= key < 2**63``."""
    return mix(derive_random_key(seed ^ SHARDED, epoch, shard) ^ (position & MASK)) >> 1
