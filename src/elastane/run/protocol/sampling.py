"""The samples and random keys of virtual ranks, which depend on the step and never on the worker."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from elastane.run.nouns.spec import DATA_START, DataPosition

MASK = (1 << 64) - 1
LOADING = 0x10AD5A3B1E5EED
SHARDED = 0x5A4D5EED0F57BEA3


def mix(value: int) -> int:
    """Mix 64 bits bijectively, with the finaliser of SplitMix64 (Steele, Lea, Flood; OOPSLA 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def hash_sample(index: int) -> int:
    """Return the 64-bit hash of a dataset index; a ledger line has its sum over the loaded samples."""
    return mix(index ^ 0x5EED5A3B1E0FDA7A)


def derive_random_key(seed: int, step: int, virtual_rank: int) -> int:
    """Return the seed of all random numbers for one virtual rank of one step, ``0 <= key < 2**63``."""
    return mix(mix(mix(seed & MASK) ^ step) ^ virtual_rank) >> 1


def derive_loading_key(seed: int, step: int, virtual_rank: int) -> int:
    """Return the seed of the random numbers for loading the samples of a virtual rank.

    It differs from `derive_random_key`, because a process other than the computing one may load them.
    """
    return mix(derive_random_key(seed, step, virtual_rank) ^ LOADING) >> 1


def find_sample_index(position: int, length: int, seed: int, epoch: int) -> int:
    """Return the dataset index at ``position`` of the shuffled ``epoch``; a permutation of ``range(length)``.

    This applies a four-round Feistel network over the next power of two until the result is in the range
    (Black and Rogaway, CT-RSA 2002). It needs constant memory and, on average, fewer than two walks at any
    length.

    Args:
        position: ``0 <= position < length``.
        epoch: the number of the epoch, from 0.
    """
    if not 0 <= position < length:
        raise IndexError(f"position {position} is outside an epoch of {length} samples")
    bits = max(2, (length - 1).bit_length())
    low = bits // 2
    high = bits - low
    low_mask, high_mask = (1 << low) - 1, (1 << high) - 1
    first, second = _derive_round_keys(seed, epoch)
    value = position
    while True:
        left, right = value >> low, value & low_mask
        # An unbalanced network: each round changes one half by the other, so the result is a bijection.
        left ^= mix(right ^ first) & high_mask
        right ^= mix(left ^ ~first & MASK) & low_mask
        left ^= mix(right ^ second) & high_mask
        right ^= mix(left ^ ~second & MASK) & low_mask
        value = (left << low) | right
        if value < length:
            return value


@lru_cache(maxsize=8)
def _derive_round_keys(seed: int, epoch: int) -> tuple[int, int]:
    first, second = (mix(mix(seed & MASK) ^ mix((epoch << 3) + i)) for i in range(2))
    return first, second


class StepSamples(msgspec.Struct, frozen=True):
    """Positions ``start`` to ``stop`` of one epoch: the samples of one step."""

    epoch: int
    start: int
    stop: int

    @property
    def count(self) -> int:
        return self.stop - self.start

    def list_positions(self, virtual_rank: int, microbatch: int) -> range:
        """Return the positions of one virtual rank; short or empty only in the last step of an epoch."""
        first = min(self.start + virtual_rank * microbatch, self.stop)
        return range(first, min(first + microbatch, self.stop))


def count_steps_per_epoch(length: int, global_batch: int) -> int:
    """Return the number of steps that cover every sample once; the last step takes the rest."""
    return -(-length // global_batch)


def count_steps_to_end(epochs: int, length: int, global_batch: int, start: DataPosition = DATA_START) -> int:
    """Return the number of the last step of some epochs, with the steps up to ``start``."""
    rest = count_steps_per_epoch(max(0, length - start.start), global_batch)
    following = max(0, epochs - start.epoch - 1) * count_steps_per_epoch(length, global_batch)
    return start.step + (rest + following if epochs > start.epoch else 0)


def find_step_samples(
    step: int, length: int, global_batch: int, start: DataPosition = DATA_START
) -> StepSamples:
    """Return the samples of step ``step``: steps tile each epoch and never span two.

    Args:
        step: a step after that of ``start``; the first of all is 1.
        start: where the tiling begins; before it, another one may have had another global batch.
    """
    number = step - start.step - 1
    rest = count_steps_per_epoch(max(0, length - start.start), global_batch)
    if number < rest:
        epoch, first = start.epoch, start.start + number * global_batch
    else:
        epoch, number = divmod(number - rest, count_steps_per_epoch(length, global_batch))
        epoch, first = start.epoch + 1 + epoch, number * global_batch
    return StepSamples(epoch, first, min(first + global_batch, length))


def find_position_after(step: int, length: int, global_batch: int, start: DataPosition) -> DataPosition:
    """Return where the data of a dataset with a length stands after a step."""
    found = find_step_samples(step, length, global_batch, start) if step > start.step else None
    if found is None:
        return start
    if found.stop == length:
        return DataPosition(step, found.epoch + 1)
    return DataPosition(step, found.epoch, found.stop)


# -- the positions of a stream's shards, one for each virtual rank; each step commits their cursors ------


class StreamPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """The position in one shard.

    Args:
        epoch: the number of the epoch, from 0.
        position: the number of samples drawn from the shard in this epoch.
        ended: the shard has no more samples in this epoch.
        content: the sum modulo 2**64 of a hash of the content of each sample drawn in this epoch.
    """

    epoch: int = 0
    position: int = 0
    ended: bool = False
    content: int = 0


class Cursor(StreamPosition, frozen=True, omit_defaults=True):
    """A position, and how to continue from there.

    Args:
        state: the state that the stream needs, if any.
        following: the hash of the content of the next sample; None: not known.
    """

    state: Any = None
    following: int | None = None


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
    """Return the 64-bit hash of a sample of a stream; `hash_sample` hashes a dataset index."""
    return mix(mix(shard ^ SHARDED) ^ position)


def derive_stream_key(seed: int, epoch: int, shard: int, position: int) -> int:
    """Return the seed of the random numbers of one sample of a stream, ``0 <= key < 2**63``."""
    return mix(derive_random_key(seed ^ SHARDED, epoch, shard) ^ (position & MASK)) >> 1
