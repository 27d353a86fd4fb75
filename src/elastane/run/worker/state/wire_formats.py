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

import torch

from elastane.run.nouns.round_options import WireName
from elastane.run.worker.links.frames import Buffer, Payload
from elastane.run.worker.state.tensor_bytes import raw_bytes

CHUNK = 64
"""The elements with one scale: a byte, which adds a sixty-fourth of the bytes to ``int8``."""
PORTION = 1 << 16
"""The elements that a processor rounds or encodes at once: they stay in its cache between two operations."""
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
        moments: the format of averaged state. In integers small second moments would become zero, by which
            an optimizer divides.
    """

    def __init__(self, name: WireName, group: int = 1) -> None:
        self.name, self.group = name, group
        self._limit = {"int8": 127, "int4": 7}.get(name, 0)
        self.sums = WireFormat("int8") if name == "int4" else self
        self.moments = self if name == "bf16" else WireFormat("bf16", group)

    def list_formats(self) -> tuple["WireFormat", ...]:
        """Return the formats in which tensors may travel, each once; those with the fewest bits first."""
        return tuple(dict.fromkeys((self, self.sums, self.moments)))

    def round(self, values: torch.Tensor) -> None:
        """Round the elements of a 1-D tensor, which begins at a chunk, in place."""
        if values.dtype not in ROUNDED:
            return
        for part in _divide_into_portions(values):
            if self._limit:
                numbers, exponents = self._divide(_cut_rows(part))
                # Adding zero makes 0.0 of -0.0, for which integers have no sign.
                numbers.add_(0.0).mul_(_build_scales(exponents))
                part.copy_(numbers.view(-1)[: part.numel()])
            else:
                part.copy_(part.to(torch.bfloat16))

    def encode(self, values: torch.Tensor) -> torch.Tensor | None:
        """Return the bytes of a 1-D tensor, which begins at a chunk; None: it cannot represent the elements.

        A sum of several virtual ranks is not representable, except by chance.
        """
        if values.dtype not in ROUNDED:
            return None
        portions = list[tuple[torch.Tensor, ...]]()
        for part in _divide_into_portions(values):
            encoded = self._encode_portion(part)
            if encoded is None:
                return None
            portions.append(encoded)
        return torch.cat([one for ones in zip(*portions, strict=True) for one in ones]).view(torch.uint8)

    def _encode_portion(self, values: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
        """Return integers and exponents, or shorter numbers; None: they cannot represent the elements."""
        if not self._limit:
            short = values.to(torch.bfloat16)
            return (short,) if _have_same_bits(short.to(values.dtype), values) else None
        rows = _cut_rows(values)
        numbers, exponents = self._divide(rows)
        whole = numbers.to(torch.int8)
        # No integer has the bits of an infinity, a NaN or -0.0 after its way back.
        if not _have_same_bits(whole * _build_scales(exponents), rows):
            return None
        whole = whole.view(-1)
        if self.name == "int4":
            halves = (whole & 15).view(torch.uint8).view(-1, 2)
            whole = (halves[:, 0] | (halves[:, 1] << 4)).view(torch.int8)
        return whole, exponents.to(torch.int8)

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
        whole, exponents = signed[:-chunks], signed[-chunks:].to(torch.int32)
        decoded = torch.empty(chunks * CHUNK, dtype=torch.float32, device=encoded.device)
        begin = 0
        for part in _divide_into_portions(decoded):
            rows = slice(begin // CHUNK, (begin + part.numel()) // CHUNK)
            numbers = whole.view(chunks, -1)[rows]
            if self.name == "int4":
                # An arithmetic shift repeats the sign of the upper half; the lower half goes up for that.
                numbers = torch.stack(((numbers << 4) >> 4, numbers >> 4), dim=2).view(-1, CHUNK)
            torch.mul(numbers, _build_scales(exponents[rows]), out=part.view(-1, CHUNK))
            begin += part.numel()
        return decoded[:elements].to(dtype)

    def _divide(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return whole numbers of each chunk, in fp32, and the exponents of their scales.

        The scale is the smallest power of two with which the largest element is at most the limit.
        """
        largest = rows.abs().amax(1)
        fractions, exponents = torch.frexp(largest)
        bits = self._limit.bit_length()
        exponents = exponents - bits + (fractions > self._limit / (1 << bits)).to(torch.int32)
        # Infinities and NaN have no scale, and what they become does not matter: the next loss is refused.
        exponents = torch.where(largest.isfinite(), exponents, 0).clamp_(min=LEAST_EXPONENT)
        return (rows * _build_scales(-exponents)).round_(), exponents


def _divide_into_portions(values: torch.Tensor) -> Sequence[torch.Tensor]:
    return values.split(PORTION) if values.device.type == "cpu" else (values,)


def _cut_rows(values: torch.Tensor) -> torch.Tensor:
    """Return the elements in fp32, a row for each chunk; the last one may end with zeros."""
    rest = -values.numel() % CHUNK
    padded = torch.nn.functional.pad(values, (0, rest)) if rest else values
    return padded.to(torch.float32).view(-1, CHUNK)


def _build_scales(exponents: torch.Tensor) -> torch.Tensor:
    """Return powers of two as a column, exact on every device."""
    return ((exponents.to(torch.int32) + 127) << 23).view(torch.float32).unsqueeze(1)


def _have_same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    kind = torch.int32 if one.itemsize == torch.int32.itemsize else torch.int16
    return torch.equal(one.view(kind), other.view(kind))


# -- payloads: a byte for each tensor says in which format it is; 0: as it is -----------------------------


def pack_tensors(tensors: Sequence[torch.Tensor], wire: WireFormat | None) -> list[Buffer]:
    """Return the payload with 1-D tensors, which begin at chunks.

    Args:
        wire: None: the payload has the bytes of the tensors and nothing else.
    """
    if wire is None:
        return [raw_bytes(tensor) for tensor in tensors]
    formats = wire.list_formats()
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
        formats, alignment, marks = (None, *wire.list_formats()), ALIGNMENT, bytes(payload[: len(kinds)])
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
