"""Grants that were taken back without success are restored."""

import pytest

from elastane.cluster.nouns.cluster import Snapshot
from elastane.cluster.nouns.pools import Pool
from elastane.cluster.scheduler.allocator import allocate

from .test_plan import state


@pytest.mark.parametrize("taken", [(0, 1), (1, 2), (3, 1), (0, 1, 2, 3)])
def test_grants_keep_their_order_when_some_are_taken_back_and_restored(taken):
    pools = (Pool(name="a", device="h100", devices=4),)
    index, allocation = allocate(Snapshot(now_s=0.0, pools=pools, jobs=(state(),)))
    (job,) = index.jobs
    before = list(job.grants)
    assert len(before) == 4
    for i in taken:
        allocation.take_back(before[i])
    assert job.grants == [one for one in before if not one.taken_back]
    for i in reversed(taken):
        allocation.restore(before[i])
    assert job.grants == before
    assert (job.entitled, allocation.ledger.free) == (4, [0])
