"""The formats in which the differences of a round cross the wire: fewer bits, chosen once.

A run in rounds rounds the sums of some nodes of the tree to values that the format can represent: those of
each virtual rank or of each group of them, before they are added further, and complete sums. Other sums are
exact to the type of the parameters. So what travels between two machines is either representable, and
travels in the format, or it travels as it is. The transport loses nothing, and the bits of a run do not
depend on its routes.

Integers have one power of two as the scale of each chunk of elements. To round a rounded value again changes
nothing, so a sender needs no memory of the scales: it finds the same ones.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch

from elastane.run.worker.links.frames import Buffer, Payload
from elastane.run.worker.state.tensor_bytes import raw_bytes

WireName: TypeAlias = Literal["full", "bf16", "int8", "int4"]
"""``full``: the type of the parameters."""
CHUNK = 64
"""The elements with one scale: a byte, which adds a sixty-fourth of the bytes to ``int8``."""
ALIGNMENT = 16
"""The bytes of which each tensor in a payload begins at a multiple."""
LEAST_EXPONENT = -120
"""Smaller elements become zero, so scales and their inverses are normal numbers of fp32."""
ROUNDED = (torch.float32, torch.bfloat16, torch.float16)
"""The types of parameters with differences that are rounded; those of others travel as they are."""


class WireFormat:
    """A format with fewer bits than parameters have.

    Args:
        name: ``bf16``, ``int8`` or ``int4``.
        group: the number of virtual ranks of which the sum is rounded; 1: each difference is.

    Attributes:
        sums: the format of complete sums: rounding these in ``int4`` would be an error that all share.
    """

    def __init__(self, name: WireName, group: int = 1) -> None:
        self.name, self.group = name, group
        self._limit = {"int8": 127, "int4": 7}.get(name, 0)
        self.sums = WireFormat("int8") if name == "int4" else self

    def round(self, values: torch.Tensor) -> None:
        """Round the elements of a 1-D tensor, which begins at a chunk, in place."""
        if values.dtype not in ROUNDED:
            return
        if not self._limit:
            values.copy_(values.to(torch.bfloat16))
            return
        whole = values.numel() - values.numel() % CHUNK
        for part in (values[:whole], values[whole:]):
            if part.numel():
                numbers, exponents = self._divide(part)
                part.copy_(_multiply(numbers, exponents).view(-1)[: part.numel()])

    def encode(self, values: torch.Tensor) -> torch.Tensor | None:
        """Return the bytes of a 1-D tensor, which begins at a chunk; None: it cannot represent the elements.

        A sum of several virtual ranks is not representable, except by chance.
        """
        if values.dtype not in ROUNDED:
            return None
        if not self._limit:
            short = values.to(torch.bfloat16)
            return short.view(torch.uint8) if _have_same_bits(short.to(values.dtype), values) else None
        numbers, exponents = self._divide(values)
        integers = numbers.to(torch.int8)
        again = _multiply(integers.to(torch.float32), exponents).view(-1)[: values.numel()]
        if not _have_same_bits(again.to(values.dtype), values):
            return None
        whole = integers.view(-1)
        if self.name == "int4":
            halves = (whole & 15).view(torch.uint8).view(-1, 2)
            whole = (halves[:, 0] | (halves[:, 1] << 4)).view(torch.int8)
        return torch.cat((whole, exponents.to(torch.int8))).view(torch.uint8)

    def count_bytes(self, elements: int) -> int:
        """Return the number of bytes of some encoded elements."""
        if not self._limit:
            return 2 * elements
        chunks = -(-elements // CHUNK)
        return chunks * (CHUNK if self.name == "int8" else CHUNK // 2) + chunks

    def decode(self, encoded: torch.Tensor, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the elements that `encode` has represented in these bytes."""
        if not self._limit:
            return encoded.view(torch.bfloat16).to(dtype)
        chunks = -(-elements // CHUNK)
        signed = encoded.view(torch.int8)
        whole, exponents = signed[:-chunks], signed[-chunks:]
        if self.name == "int4":
            # An arithmetic shift repeats the sign of the upper half; the lower half is shifted up for that.
            whole = torch.stack(((whole << 4) >> 4, whole >> 4), dim=1)
        numbers = whole.reshape(-1, CHUNK).to(torch.float32)
        return _multiply(numbers, exponents.to(torch.int32)).view(-1)[:elements].to(dtype)

    def _divide(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return whole numbers of each chunk, in fp32, and the exponents of their scales.

        The scale is the smallest power of two with which the largest element is at most the limit.
        """
        rest = -values.numel() % CHUNK
        padded = torch.nn.functional.pad(values, (0, rest)) if rest else values
        rows = padded.to(torch.float32).view(-1, CHUNK)
        largest = rows.abs().amax(1)
        fractions, exponents = torch.frexp(largest)
        bits = self._limit.bit_length()
        exponents = exponents - bits + (fractions > self._limit / (1 << bits)).to(torch.int32)
        # Infinities and NaN have no scale, and what they become does not matter: the next loss is refused.
        exponents = torch.where(largest.isfinite(), exponents, 0).clamp_(min=LEAST_EXPONENT)
        # Adding zero makes 0.0 of -0.0, for which integers have no sign.
        return (rows * _build_scales(-exponents)).round_().add_(0.0), exponents


def _build_scales(exponents: torch.Tensor) -> torch.Tensor:
    """Return powers of two as a column, exact on every device."""
    return ((exponents.to(torch.int32) + 127) << 23).view(torch.float32).unsqueeze(1)


def _multiply(numbers: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    return numbers * _build_scales(exponents)


def _have_same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


# -- payloads: a byte for each tensor says in which format it is; 0: as it is -----------------------------


def pack_tensors(tensors: Sequence[torch.Tensor], wire: WireFormat | None) -> list[Buffer]:
    """Return the payload with 1-D tensors, which begin at chunks.

    Args:
        wire: None: the payload has the bytes of the tensors and nothing else.
    """
    if wire is None:
        return [raw_bytes(tensor) for tensor in tensors]
    formats = dict.fromkeys((wire, wire.sums))
    marks, buffers = bytearray(), list[Buffer]()
    for tensor in tensors:
        encoded = ((mark, each.encode(tensor)) for mark, each in enumerate(formats, 1))
        mark, sent = next(((mark, short) for mark, short in encoded if short is not None), (0, tensor))
        marks.append(mark)
        part = raw_bytes(sent)
        buffers += [part, bytes(-part.nbytes % ALIGNMENT)]
    return [marks, bytes(-len(marks) % ALIGNMENT), *buffers]


def unpack_tensors(
    payload: Payload, kinds: Sequence[tuple[int, torch.dtype]], wire: WireFormat | None
) -> list[torch.Tensor]:
    """Return the tensors in a payload of `pack_tensors`; those not encoded are views of it.

    Args:
        kinds: the elements and the type of each tensor.

    Raises:
        ValueError: the payload does not fit the kinds.
    """
    formats: tuple[WireFormat | None, ...] = (None,)
    tensors, offset, alignment, marks = list[torch.Tensor](), 0, 1, bytes(len(kinds))
    if wire is not None:
        formats, alignment, marks = (None, wire, wire.sums), ALIGNMENT, bytes(payload[: len(kinds)])
        offset = len(kinds) + -len(kinds) % alignment
        if len(marks) < len(kinds) or max(marks, default=0) >= len(formats):
            raise ValueError("the payload has no valid format for each of its tensors")
    for (elements, dtype), mark in zip(kinds, marks, strict=True):
        chosen = formats[mark]
        count, stored = (elements, dtype) if chosen is None else (chosen.count_bytes(elements), torch.uint8)
        part = torch.frombuffer(payload, dtype=stored, count=count, offset=offset)
        tensors.append(part if chosen is None else chosen.decode(part, elements, dtype))
        offset += part.nbytes + -part.nbytes % alignment
    return tensors
