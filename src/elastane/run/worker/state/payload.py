"""Tensors and plain values as bytes that one worker sends to another.

The payload is a length of 8 bytes, a JSON header, then the memory of one tensor after another. Packing copies
nothing: the sender's state cannot change before the receiver has everything, because no step commits without
the receiver's vote.
"""

import json
from collections.abc import Mapping
from typing import Any

import torch

from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import Malformed
from elastane.run.worker.links.frames import Buffer, Payload
from elastane.run.worker.state.tensor_bytes import raw_bytes

LENGTH_BYTES = 8


def pack_state(tensors: Mapping[str, torch.Tensor], plain: Mapping[str, Any]) -> list[Buffer]:
    """Return the pieces of a payload, in order.

    Args:
        tensors: dense tensors of any data type, by name.
        plain: values that JSON can hold, by name.
    """
    positions, views, start = {}, [], 0
    for name, tensor in tensors.items():
        view = raw_bytes(tensor)
        positions[name] = (str(tensor.dtype).removeprefix("torch."), list(tensor.shape), start)
        views.append(view)
        start += view.nbytes
    header = json.dumps({"tensors": positions, "plain": dict(plain)}).encode()
    return [len(header).to_bytes(LENGTH_BYTES, "little") + header, *views]


def unpack_state(payload: Payload) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the tensors, as views of the payload, and the plain values.

    Raises:
        Malformed: the payload does not come from `pack_state`.
    """
    try:
        return _unpack(payload)
    except RecursionError as error:
        raise Malformed("its header is nested too deeply") from error
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RuntimeError) as error:
        raise Malformed(f"not a packed state: {escape_line(str(error))}") from error


def _unpack(payload: Payload) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    length = int.from_bytes(payload[:LENGTH_BYTES], "little")
    first = LENGTH_BYTES + length
    # Not `elastane.common.untrusted_data.Decoder`: generators have states of 128 bits, and a value may be
    # NaN.
    header = json.loads(bytes(payload[LENGTH_BYTES:first]))
    tensors = {}
    for name, (dtype_name, shape, start) in header["tensors"].items():
        dtype = getattr(torch, dtype_name)
        if not isinstance(dtype, torch.dtype):
            raise Malformed(f"{dtype_name} is not a data type")
        count = torch.Size(shape).numel()
        flat = torch.frombuffer(payload, dtype=dtype, count=count, offset=first + start) if count else None
        tensors[name] = torch.empty(shape, dtype=dtype) if flat is None else flat.view(shape)
    plain = header["plain"]
    if not isinstance(plain, dict):
        raise Malformed("its plain values are not an object")
    return tensors, plain
