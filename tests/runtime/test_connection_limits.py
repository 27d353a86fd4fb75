"""A worker at the limit of workers that its descriptors allow still has a connection to every other one."""

import resource
import subprocess
import sys
import time

import pytest

from elastane.api.connection_limits import OWN_DESCRIPTORS, check_worker_limit, compute_most_workers
from elastane.api.errors import BadInput
from elastane.runtime.links.mesh import Mesh

DESCRIPTORS = 256
WAIT_S = 60
OTHERS = """
import sys
from elastane.runtime.links.mesh import Mesh

port, last = map(int, sys.argv[1:])
meshes = [Mesh(number, b"secret") for number in range(1, last + 1)]
for mesh in meshes:
    # One after the other: this process answers for all.
    mesh.dial(0, "127.0.0.1", port)
    while 0 not in mesh._peers:
        mesh.poll(0.1, lambda *_: None, lambda _: None)
sys.stdin.read()
"""


@pytest.fixture
def few_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def opened_files(tmp_path):
    """Have as many other files open as the limit allows for."""
    files = [(tmp_path / "file").open("w") for _ in range(OWN_DESCRIPTORS - 40)]
    yield
    for file in files:
        file.close()


@pytest.mark.usefixtures("few_descriptors", "opened_files")
def test_a_worker_connects_to_as_many_others_as_the_limit_says():
    others = compute_most_workers(DESCRIPTORS) - 1
    mesh = Mesh(0, b"secret")
    command = [sys.executable, "-c", OTHERS, str(mesh.port), str(others)]
    lost = []
    # The other process holds all other workers, and so more descriptors.
    with subprocess.Popen(command, stdin=subprocess.PIPE, preexec_fn=lift_limit) as process:  # noqa: PLW1509 - no threads here
        try:
            deadline = time.monotonic() + WAIT_S
            while len(mesh._peers) < others:
                assert time.monotonic() < deadline, f"{len(mesh._peers)} of {others} have connected"
                mesh.poll(0.05, lambda *_: None, lost.append)
        finally:
            process.kill()
            mesh.close()
    assert lost == []


def lift_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


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
