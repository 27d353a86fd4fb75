"""A worker at the limit of workers that its descriptors allow still has a connection to every other one."""

import resource
import subprocess
import sys

import pytest

from elastane.common.errors import BadInput
from elastane.run.nouns.connection_limits import OWN_DESCRIPTORS, check_worker_limit, compute_most_workers
from elastane.run.worker.links.mesh import Mesh
from tests.waiting import wait_until

DESCRIPTORS = 256
LIMITED = """
import os, resource, sys
from elastane.run.worker.links.mesh import Mesh

descriptors, own, others = map(int, sys.argv[1:])
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
mesh = Mesh(0, b"secret")
files = [open(os.devnull) for _ in range(own - len(os.listdir("/proc/self/fd")))]
print(mesh.port, flush=True)
while len(mesh.peers) < others:
    mesh.poll(1, lambda *_: None, lambda _: None)
print("all", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def few_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_worker_connects_to_as_many_others_as_the_limit_says():
    others = compute_most_workers(DESCRIPTORS) - 1
    command = [sys.executable, "-c", LIMITED, *map(str, (DESCRIPTORS, OWN_DESCRIPTORS, others))]
    meshes = [Mesh(number, b"secret") for number in range(1, others + 1)]
    lost = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            port = int(process.stdout.readline())
            # One after the other: this thread answers for all.
            for mesh in meshes:
                mesh.dial(0, "127.0.0.1", port)
                wait_until(
                    lambda mesh=mesh: 0 in mesh.peers,
                    f"worker {mesh.worker} of {others} is connected",
                    meanwhile=lambda mesh=mesh: mesh.poll(0.1, lambda *_: None, lost.append),
                )
            assert process.stdout.readline() == b"all\n"
        finally:
            process.kill()
            for mesh in meshes:
                mesh.close()
    assert lost == []


@pytest.mark.usefixtures("few_descriptors")
def test_more_workers_are_refused_with_a_sentence():
    most = compute_most_workers(DESCRIPTORS)
    check_worker_limit(most)
    with pytest.raises(BadInput, match=f"may have {most + 1} workers.* descriptors for {most}"):
        check_worker_limit(most + 1)


@pytest.mark.parametrize("descriptors", [16, 64, 256, 1024, 4096, 1 << 20])
def test_the_limit_leaves_room_for_all_else(descriptors):
    most = compute_most_workers(descriptors)
    assert 1 <= most <= max(1, descriptors - OWN_DESCRIPTORS)
    assert compute_most_workers(2 * descriptors) >= most


def test_the_documented_limits_hold():
    assert [compute_most_workers(descriptors) for descriptors in (1024, 4096)] == [736, 3680]
