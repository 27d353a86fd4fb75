"""A copy of the settled state is compared with the digests of the last votes, beyond the share too."""

from types import SimpleNamespace

import pytest

from elastane.run.worker.state_meter import StateMeter


@pytest.fixture
def build_meter():
    """Return a function that builds the meter of a worker that should hold the first of two blocks."""

    def build(agreed):
        member = SimpleNamespace(
            outcome=SimpleNamespace(digests=agreed), keeps_state_of=lambda block: block == 0
        )
        state = SimpleNamespace(
            digest=lambda block: (f"values {block}", f"states {block}"),
            digest_copies=dict,
            replicated=SimpleNamespace(digest=lambda: ("", ""), digest_parts=dict),
        )
        return StateMeter(member, None, state, measure_norms=False)

    return build


def test_a_block_beyond_the_share_is_unchanged_with_the_agreed_digests(build_meter):
    meter = build_meter({0: ("values 0", "states 0"), 1: ("values 1", "states 1")})
    assert meter.is_unchanged((0, 1))


@pytest.mark.parametrize("block", [0, 1])
def test_other_optimizer_state_is_a_change(build_meter, block):
    agreed = {0: ("values 0", "states 0"), 1: ("values 1", "states 1")}
    agreed[block] = agreed[block][0], "other states"
    assert not build_meter(agreed).is_unchanged((0, 1))


def test_a_vote_has_no_digest_of_optimizer_state_beyond_the_share(build_meter):
    measured = build_meter({}).measure(1, (), (0, 1))
    assert measured.digests == {0: ("values 0", "states 0"), 1: ("values 1", "")}
