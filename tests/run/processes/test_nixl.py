"""Workers that share no memory read each other's payloads with NIXL, and train the bytes of one worker."""

from importlib.util import find_spec
from itertools import product

import pytest

from elastane.run.nouns.records import FALLBACK

from .stage import add_worker_2_and_drain_worker_0

pytestmark = [
    pytest.mark.processes,
    pytest.mark.long,
    pytest.mark.skipif(find_spec("nixl") is None, reason="NIXL is not installed: elastane[nixl]"),
]


@pytest.fixture(autouse=True, params=["tcp", "all"])
def network(request, monkeypatch):
    """As between machines, or within one, where the system copies the memory of other processes."""
    if request.param == "tcp":
        monkeypatch.setenv("UCX_TLS", "tcp")


def count_reads(ended):
    """Return how often each worker has read the memory of another one."""
    files = ended.run.run_dir.root.glob("remote-*")
    return {int(path.name.removeprefix("remote-")): len(path.read_text().split()) for path in files}


@pytest.mark.parametrize("copies", [None, 2])
@pytest.mark.parametrize("workers", [2, 4])
def test_workers_train_the_same_bytes(stage, assert_equals_reference, workers, copies):
    ended = stage.play("--apart", start=workers, copies=copies, transport="nixl")
    assert_equals_reference(ended)
    reads = count_reads(ended)
    assert len(reads) == workers
    assert min(reads.values()) > 30
    assert ended.find_events(FALLBACK) == []


@pytest.mark.parametrize("copies", [None, 2])
def test_workers_may_join_and_leave(stage, assert_equals_reference, copies):
    ended = stage.play(
        *("--apart", "--paced-from=5"),
        disturb=add_worker_2_and_drain_worker_0,
        start=2,
        copies=copies,
        transport="nixl",
    )
    assert_equals_reference(ended)
    assert set(ended.get_shares(30)) == {1, 2}
    assert count_reads(ended)[2] > 0


# Workers with whole copies publish nothing.
MOMENTS = [
    *product(["in-backward", "after-first-sum", "before-vote", "before-apply"], [None, 2]),
    ("after-one-published", 2),
]


@pytest.mark.parametrize(("moment", "copies"), MOMENTS)
def test_a_worker_may_die(stage, assert_equals_reference, moment, copies):
    ended = stage.play("--apart", f"--fault=1:5:{moment}", start=3, copies=copies, transport="nixl")
    assert ended.find_subjects("worker.died") == ["worker 1"], ended.describe()
    assert_equals_reference(ended)
