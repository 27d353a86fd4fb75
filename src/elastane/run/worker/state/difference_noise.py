"""Noise for the differences of a private run: what leaves a site is clipped, and noisy.

The noise follows from a secret of the site and from the difference itself. So a virtual rank that is computed
twice, by whichever workers of its site, has the same bits, as everything has in a run: that tells no more
than once would. Two different differences have independent noise, also if they are those of the same round,
made again after a loss. So has one difference with two amounts of noise, as in the first round of two runs:
if one were a multiple of the other, both together would show the difference. Random bits come from SHAKE-256,
of which one part tells nothing about another: parameters that have not changed show their noise as it is.
"""

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence

import torch

from elastane.common.errors import RunFailed
from elastane.run.worker.state.tensor_bytes import raw_bytes

BELOW = 1 - 2.0**-20
"""The part of the largest norm to which differences are clipped, so that rounding does not exceed it."""
WORDS = 1 << 32


class DifferenceNoise:
    """Clips the differences of virtual ranks, and adds noise to them.

    Args:
        clip: the largest norm.
        noise: the standard deviation, as a multiple of it.
        keys: of the virtual ranks of this worker's sites.
    """

    def __init__(self, clip: float, noise: float, keys: Mapping[int, bytes]) -> None:
        self._clip, self._deviation, self._keys = clip, clip * noise, dict(keys)

    @torch.no_grad()
    def apply(self, blocks: Sequence[torch.Tensor], rank: int, round_: int) -> None:
        """Clip a difference and add noise, in place.

        Args:
            blocks: all of the difference; 1-D.
            rank: the virtual rank.
            round_: the round in which it was made.

        Raises:
            RunFailed: the difference is not finite.
        """
        norms = [float(torch.linalg.vector_norm(block, dtype=torch.float64)) for block in blocks]
        norm = math.sqrt(math.fsum(own * own for own in norms))
        if not math.isfinite(norm):
            raise RunFailed(
                f"what virtual rank {rank} has changed in round {round_} has the norm {norm}",
                means="the round was not committed, so the model is that of the round before",
                do="check the learning rate; the same seed gives the same round again",
            )
        factor = BELOW * self._clip / norm if norm > BELOW * self._clip else 1.0
        place = struct.pack("<qqdd", rank, round_, self._clip, self._deviation)
        hashed = hashlib.blake2b(place, key=self._keys[rank], digest_size=32)
        for block in blocks:
            hashed.update(raw_bytes(block))
        seed = hashed.digest()
        for number, block in enumerate(blocks):
            noise = draw_normals(seed + struct.pack("<q", number), block.numel()) * self._deviation
            # In fp64: a difference that is clipped in few bits may exceed the largest norm.
            block.copy_(block.double() * factor + noise.to(block.device))

    def describe(self) -> str:
        """Return what all workers must do alike."""
        return f"clipped to {self._clip!r} with noise of {self._deviation!r}"

    def seal(self, text: str, rank: int) -> str:
        """Return a digest that only workers of the site of a virtual rank can compare with a guess."""
        return hashlib.blake2b(text.encode(), key=self._keys[rank], digest_size=16).hexdigest()


def draw_normals(seed: bytes, count: int) -> torch.Tensor:
    """Return independent numbers of the standard normal distribution, in fp64 (Box and Muller, 1958)."""
    if not count:
        # Torch makes no tensor of an empty buffer.
        return torch.empty(0, dtype=torch.float64)
    pairs = -(-count // 2)
    words = torch.frombuffer(bytearray(hashlib.shake_256(seed).digest(8 * pairs)), dtype=torch.int32)
    # Each is in the middle of one of 2**32 parts between 0 and 1.
    uniform = (words.double() + (WORDS / 2 + 0.5)) / WORDS
    radius, angle = (-2 * uniform[:pairs].log()).sqrt(), 2 * math.pi * uniform[pairs:]
    return torch.cat((radius * angle.cos(), radius * angle.sin()))[:count]
