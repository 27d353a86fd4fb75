"""A batch arrives from a loader as the loader loaded it."""

import multiprocessing

import pytest
import torch

from elastane.run.worker.data.loaders import SMALL_BYTES, pack_batch, unpack_batch

BATCHES = {
    "small": torch.arange(12).reshape(3, 4),
    "large": torch.arange(SMALL_BYTES).reshape(4, -1),
    "view": torch.arange(24).reshape(4, 6).t()[1:3],
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 3),
    "half": torch.arange(6, dtype=torch.bfloat16),
    "truth": torch.tensor([True, False]),
    "complex": torch.tensor([1 + 2j]),
}


def _send(pipe, batch):
    pipe.send_bytes(pack_batch(batch))
    pipe.recv_bytes()


@pytest.mark.parametrize("kind", BATCHES)
def test_a_batch_arrives_unchanged(kind):
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    batch = {"x": [BATCHES[kind], "text"], "y": (BATCHES[kind] * 1, None)}
    process = context.Process(target=_send, args=(there, batch))
    process.start()
    arrived = unpack_batch(here.recv_bytes())
    here.send_bytes(b"")
    process.join()
    assert arrived["x"][1] == "text"
    assert arrived["y"][1] is None
    for one, other in ((arrived["x"][0], batch["x"][0]), (arrived["y"][0], batch["y"][0])):
        assert (one.dtype, one.shape, one.layout) == (other.dtype, other.shape, other.layout)
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_received_small_tensor_is_writable():
    arrived = unpack_batch(pack_batch(torch.zeros(3)))
    arrived += 1
    assert arrived.tolist() == [1, 1, 1]
