"""A payload of state is unpacked completely, or it is malformed."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elastane.common.untrusted_data import Malformed
from elastane.run.worker.state.payload import pack_state, unpack_state

PACKED = bytearray().join(
    pack_state(
        {"value/0": torch.arange(6.0).reshape(2, 3)}, {"rest": {"big": 1 << 100, "rate": float("inf")}}
    )
)


def build_payload(header: object) -> bytearray:
    text = json.dumps(header).encode()
    return bytearray(len(text).to_bytes(8, "little") + text + bytes(64))


def test_packed_state_is_unpacked_exactly():
    tensors, plain = unpack_state(PACKED)
    assert tensors["value/0"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert plain == {"rest": {"big": 1 << 100, "rate": float("inf")}}


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(bytearray(), id="nothing"),
        pytest.param(bytearray(b"\xff" * 8), id="a header beyond the end"),
        pytest.param(build_payload([]), id="not an object"),
        pytest.param(build_payload({"tensors": {}}), id="no plain values"),
        pytest.param(build_payload({"tensors": {}, "plain": 3}), id="plain values that are not an object"),
        pytest.param(
            build_payload({"tensors": {"a": ["float32", [1 << 40], 0]}, "plain": {}}), id="too long a tensor"
        ),
        pytest.param(
            build_payload({"tensors": {"a": ["float32", [-4], 0]}, "plain": {}}), id="a negative shape"
        ),
        pytest.param(
            build_payload({"tensors": {"a": ["float32", [4], -900]}, "plain": {}}), id="before its beginning"
        ),
        pytest.param(
            build_payload({"tensors": {"a": ["load", [4], 0]}, "plain": {}}), id="a function for a type"
        ),
        pytest.param(build_payload({"tensors": {"a": 3}, "plain": {}}), id="not a tensor"),
        pytest.param(
            bytearray((20_000).to_bytes(8, "little") + b"[" * 20_000), id="nested ten thousand levels deep"
        ),
    ],
)
def test_bytes_that_were_never_packed_are_malformed(payload):
    with pytest.raises(Malformed):
        unpack_state(payload)


@settings(derandomize=True, max_examples=300)
@given(
    changes=st.lists(st.tuples(st.integers(0, len(PACKED) - 1), st.integers(0, 255)), max_size=5),
    length=st.integers(0, len(PACKED)),
)
def test_a_damaged_payload_is_valid_or_malformed(changes, length):
    payload = bytearray(PACKED)
    for place, byte in changes:
        payload[place] = byte
    try:
        tensors, plain = unpack_state(payload[:length])
    except Malformed:
        return
    assert isinstance(tensors, dict)
    assert isinstance(plain, dict)
