"""The trained bytes do not depend on how many workers there are, nor on how they keep and move state."""

import pytest

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_the_bytes_are_the_same(stage, assert_undisturbed, workers):
    ended = stage.play(start=workers)
    assert_undisturbed(ended)
    assert set(ended.shares(12)) == set(range(workers))
