"""Peers can read arenas by descriptor; the kernel frees them with their last user."""

import os
import subprocess
import sys

import pytest
import torch

from elastane.run.worker.state.shared_memory import PAGE, Arena, PeerArenas, Section
from elastane.run.worker.state.tensor_bytes import raw_bytes

SECTIONS = (Section(torch.float32, 3), Section(torch.bfloat16, 5000), Section(torch.int64, 1))


def test_sections_begin_as_zeros_on_their_own_pages():
    arena = Arena("test", SECTIONS)
    assert [tensor.numel() for tensor in arena.tensors] == [3, 5000, 1]
    assert all(not tensor.any() for tensor in arena.tensors)
    starts = [tensor.data_ptr() for tensor in arena.tensors]
    assert [start % PAGE for start in starts] == [0, 0, 0]
    assert [start - starts[0] for start in starts] == [0, PAGE, 4 * PAGE]


def test_a_peer_reads_an_arena_without_a_copy():
    arena, peers = Arena("test", SECTIONS), PeerArenas(SECTIONS)
    there = peers.map_sections(os.getpid(), arena.fd)
    arena.tensors[1][4999] = 1.5
    assert there[1][4999] == 1.5
    assert peers.map_sections(os.getpid(), arena.fd) is there


def test_a_mapped_arena_of_a_dead_process_stays_readable():
    script = (
        "import torch, sys\n"
        "from elastane.run.worker.state.shared_memory import Arena, Section\n"
        "kinds = (torch.float32, 3), (torch.bfloat16, 5000), (torch.int64, 1)\n"
        "arena = Arena('dead', [Section(*kind) for kind in kinds])\n"
        "arena.tensors[0].fill_(2.5)\n"
        "print(arena.fd, flush=True)\n"
        "sys.stdin.read()\n"
    )
    peers = PeerArenas(SECTIONS)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as peer:
        there = peers.map_sections(peer.pid, int(peer.stdout.readline()))
        peer.kill()
    assert there[0].tolist() == [2.5] * 3
    with pytest.raises(OSError):  # noqa: PT011 - the kind depends on how far the process has ended
        peers.map_sections(peer.pid, 99)
    peers.forget(peer.pid)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.float64])
def test_raw_bytes_are_a_view_of_the_memory(dtype):
    tensor = torch.arange(6).to(dtype)
    raw = raw_bytes(tensor)
    assert raw.nbytes == 6 * dtype.itemsize
    tensor.fill_(1)
    assert torch.frombuffer(bytearray(raw), dtype=dtype).tolist() == [1] * 6
