"""Digests by sums of rows: their definition in plain numbers, and the changes that they find."""

import hashlib

import pytest
import torch

from elastane.run.worker.state.row_sums import ROW, ROW_BYTES, SCHEME, sum_word_rows, update_digest

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="GPU"))]


def digest(*tensors):
    made = hashlib.sha256()
    for tensor in tensors:
        update_digest(made, tensor)
    return made.hexdigest()


def compute_sums(content):
    """Return the sums of the rows of some bytes in Python's numbers."""
    made = hashlib.shake_256(SCHEME.encode()).digest(8 * ROW)
    factors = [int.from_bytes(made[at : at + 8], "little") | 1 for at in range(0, len(made), 8)]
    content += bytes(-len(content) % ROW_BYTES)
    words = [int.from_bytes(content[at : at + 4], "little", signed=True) for at in range(0, len(content), 4)]
    rows = [words[at : at + ROW] for at in range(0, len(words), ROW)]
    return [sum(map(int.__mul__, row, factors)) % (1 << 64) for row in rows]


def make(elements, dtype):
    generator = torch.Generator().manual_seed(elements)
    return torch.randint(0, 256, (elements * dtype.itemsize,), generator=generator, dtype=torch.uint8).view(
        dtype
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8])
@pytest.mark.parametrize("elements", [1, 3 * ROW, 2 * ROW + 1])
def test_the_sums_are_those_of_plain_numbers_on_every_device(elements, dtype, device):
    tensor = make(elements, dtype)
    sums = [number % (1 << 64) for number in sum_word_rows(tensor.to(device)).tolist()]
    assert sums == compute_sums(bytes(tensor.view(torch.uint8).tolist()))


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_the_place_of_a_tensor_in_memory_does_not_matter(offset):
    whole = make(2 * ROW_BYTES, torch.bfloat16)
    part = whole[offset : offset + ROW_BYTES]
    assert digest(part) == digest(part.clone())
    matrix = make(300 * 40, torch.float32).view(300, 40)
    assert digest(matrix.t()) == digest(matrix.t().contiguous())


@pytest.mark.parametrize("elements", [ROW, 70 * ROW + 5])
def test_a_change_of_any_word_is_found(elements):
    tensor = make(elements, torch.int32)
    before = digest(tensor)
    for place in (0, 1, ROW - 1, elements - 1):
        for bit in (0, 16, 31):
            tensor[place] ^= -(1 << 31) if bit == 31 else 1 << bit
            assert digest(tensor) != before
            tensor[place] ^= -(1 << 31) if bit == 31 else 1 << bit
    assert digest(tensor) == before


def test_changes_that_cancel_in_a_plain_sum_are_found():
    zeros = torch.zeros(2 * ROW)
    signs = zeros.clone()
    signs[[5, 17]] = -0.0
    swapped, other_row = zeros.clone(), zeros.clone()
    zeros[5], swapped[17], other_row[5 + ROW] = 1.0, 1.0, 1.0
    assert len({digest(tensor) for tensor in (torch.zeros(2 * ROW), zeros, signs, swapped, other_row)}) == 5
