"""Formats of the wire: rounding twice changes nothing, and the transport loses nothing."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers, lists, sampled_from

from elastane.common.errors import BadInput
from elastane.run.worker.arguments import parse_wire
from elastane.run.worker.state.tensor_bytes import raw_bytes
from elastane.run.worker.state.wire_formats import (
    WireFormat,
    pack_tensors,
    unpack_tensors,
)

NAMES = ("bf16", "int8", "int4")
NUMBERS = floats(width=32, allow_nan=False, allow_infinity=False)


def pass_through(tensors, wire):
    payload = memoryview(bytearray(b"".join(pack_tensors(tensors, wire))))
    kinds = [(tensor.numel(), tensor.dtype) for tensor in tensors]
    return unpack_tensors(payload, kinds, wire), payload.nbytes


@settings(deadline=None)
@given(lists(NUMBERS, min_size=1, max_size=200), sampled_from(NAMES))
def test_a_rounded_tensor_is_the_same_after_a_second_rounding_and_after_its_journey(numbers, name):
    wire = WireFormat(name)
    values = torch.tensor(numbers, dtype=torch.float32)
    wire.round(values)
    again = values.clone()
    wire.round(again)
    assert raw_bytes(again) == raw_bytes(values)
    (arrived,), _ = pass_through([values], wire)
    assert raw_bytes(arrived) == raw_bytes(values)
    if values.isfinite().all():
        assert wire.encode(values) is not None


@settings(deadline=None)
@given(lists(floats(width=32), min_size=1, max_size=200), sampled_from(NAMES))
def test_any_other_tensor_travels_as_it_is(numbers, name):
    values = torch.tensor(numbers, dtype=torch.float32)
    (arrived,), _ = pass_through([values], WireFormat(name))
    assert raw_bytes(arrived) == raw_bytes(values)


@settings(deadline=None)
@given(integers(-130, 127), sampled_from(["int8", "int4"]))
def test_an_element_moves_by_at_most_half_of_its_chunks_scale(exponent, name):
    generator = torch.Generator().manual_seed(exponent + 200)
    values = torch.rand(640, generator=generator).sub_(0.5) * 2.0**exponent
    before = values.clone()
    WireFormat(name).round(values)
    largest = before.view(-1, 64).abs().amax(1)
    scale = 2.0 ** torch.ceil(torch.log2(largest.double() / (127 if name == "int8" else 7)))
    error = (values - before).double().abs().view(-1, 64).amax(1)
    assert (error <= scale.clamp(min=2.0**-120) / 2 + 2.0**-149).all()


@pytest.mark.parametrize(("name", "share"), [("bf16", 2.0), ("int8", 65 / 64), ("int4", 33 / 64)])
def test_a_format_has_the_bytes_that_its_name_promises(name, share):
    wire, values = WireFormat(name), torch.randn(1 << 14)
    wire.round(values)
    _, size = pass_through([values], wire)
    assert size == 16 + share * values.numel()


def test_sums_in_int4_cross_in_int8_and_other_sums_in_full():
    wire, leaf, total = WireFormat("int4"), torch.randn(640), torch.randn(640)
    wire.round(leaf)
    wire.sums.round(total)
    partial = torch.randn(640)
    arrived, size = pass_through([leaf, total, partial], wire)
    assert size == 16 + (320 + 10 + 6) + (640 + 10 + 6) + 4 * 640
    for one, other in zip(arrived, (leaf, total, partial), strict=True):
        assert raw_bytes(one) == raw_bytes(other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_parameters_of_other_types_arrive_as_they_were(dtype, name):
    wire, values = WireFormat(name), torch.randn(100).to(dtype)
    wire.round(values)
    counters = torch.arange(3)
    arrived, _ = pass_through([values, counters], wire)
    assert list(map(raw_bytes, arrived)) == [raw_bytes(values), raw_bytes(counters)]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_elements_that_are_not_finite_stay_so(value):
    values = torch.ones(70)
    values[3] = value
    WireFormat("int8").round(values)
    assert not math.isfinite(values[3])
    assert values[64:].tolist() == [1.0] * 6


def test_a_payload_that_does_not_fit_is_refused():
    wire = WireFormat("int8")
    with pytest.raises(ValueError, match="no valid format"):
        unpack_tensors(memoryview(bytearray(b"\7" + bytes(100))), [(4, torch.float32)], wire)
    with pytest.raises(ValueError, match="buffer"):
        unpack_tensors(memoryview(bytearray(b"\1" + bytes(20))), [(64, torch.float32)], wire)
    with pytest.raises(ValueError, match="no valid format"):
        unpack_tensors(memoryview(bytearray()), [(64, torch.float32)], wire)


def test_an_unknown_format_is_refused():
    assert parse_wire("full") is None
    with pytest.raises(BadInput, match="invalid wire: 'fp8'"):
        parse_wire("fp8")
