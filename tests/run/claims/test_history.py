"""The decisions about a list, on lists that claimants have made by the rules and others have damaged."""

from dataclasses import replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from elastane.run.machines.claims.history import (
    describe_unreadable,
    find_newest_term,
    find_next_slot,
    find_superseding_term,
    list_generations,
    number_next_term,
)
from elastane.run.machines.claims.records import (
    GenerationClaim,
    HeldSlot,
    OutcomeClaim,
    TermClaim,
    Unreadable,
    decode_content,
    encode_record,
    make_nonce,
)

DAMAGE = Unreadable("torn")


def term(number):
    return TermClaim(number=number, claimant="a:1", nonce=make_nonce(), time=0.0)


def generation(number, of_term):
    return GenerationClaim(number=number, term=of_term, members=(0, 1), nonce=make_nonce())


steps = st.lists(
    st.tuples(st.sampled_from(["term", "generation", "stale generation"]), st.booleans(), st.booleans())
)
"""The claims of a list: kind, whether it is damaged at once, and whether it is damaged in the end."""


def play(history):
    """Return the records of claimants that read the list before each claim, and the list in the end."""
    seen, true, final = (), [], []
    for slot, (kind, damaged_now, damaged_later) in enumerate(history, start=1):
        terms = [record.number for record in true if isinstance(record, TermClaim)]
        if kind == "term":
            record = term(number_next_term(seen))
        else:
            current = terms[-1] if terms else 1
            record = generation(slot, max(1, current - (kind == "stale generation")))
        true.append(record)
        seen = (*seen, HeldSlot(slot, DAMAGE if damaged_now else record))
        final.append(HeldSlot(slot, DAMAGE if damaged_now or damaged_later else record))
    return true, tuple(final)


@given(steps, st.integers(1, 100))
def test_the_next_term_exceeds_every_term_ever_claimed_even_if_its_record_is_damaged(history, at_least):
    true, final = play(history)
    numbers = [record.number for record in true if isinstance(record, TermClaim)]
    assert numbers == sorted(set(numbers))
    following = number_next_term(final, at_least)
    assert following >= at_least
    assert all(number < following for number in numbers)
    # Without damage, the numbers have no gap.
    whole = tuple(HeldSlot(one.slot, record) for one, record in zip(final, true, strict=True))
    if not any(now for _, now, _ in history):
        assert number_next_term(whole) == len(numbers) + 1


@given(steps)
def test_exactly_one_readable_term_is_in_charge(history):
    _, final = play(history)
    readable = [one.record for one in final if isinstance(one.record, TermClaim)]
    newest = find_newest_term(final)
    assert newest == (readable[-1] if readable else None)
    assert find_next_slot(final) == len(final) + 1
    for record in readable:
        assert (find_superseding_term(final, record) is None) is (record == newest)
    # A coordinator that could not claim its term gives way to an equal number.
    if newest is not None:
        assert find_superseding_term(final, term(newest.number)) == newest
        assert find_superseding_term(final, term(newest.number + 1)) is None


@given(steps)
def test_a_generation_of_an_outdated_term_does_not_count(history):
    true, final = play(history)
    for found in list_generations(final):
        slot = next(one.slot for one in final if one.record == found)
        earlier = [record.number for record in true[: slot - 1] if isinstance(record, TermClaim)]
        readable = [one.record.number for one in final[: slot - 1] if isinstance(one.record, TermClaim)]
        assert all(number <= found.term for number in readable)
        assert not earlier or found.term >= earlier[-1] or earlier[-1] not in readable


def test_the_first_of_two_equal_terms_stays_in_charge():
    first, second = term(3), term(3)
    assert find_newest_term((HeldSlot(1, first), HeldSlot(2, second))) == first


def test_a_stale_coordinator_cannot_undo_a_generation():
    newer = generation(5, 2)
    held = tuple(
        HeldSlot(slot, record)
        for slot, record in enumerate((term(1), term(2), newer, generation(6, 1)), start=1)
    )
    assert list_generations(held) == (newer,)
    # The generation proves its term, whose own record is unreadable.
    assert list_generations((held[0], replace(held[1], record=DAMAGE), *held[2:])) == (newer,)


@given(st.binary(max_size=200))
def test_no_bytes_are_more_than_unreadable(content):
    found = decode_content(content)
    assert isinstance(found, Unreadable | TermClaim | GenerationClaim | OutcomeClaim)
    sentence = describe_unreadable(HeldSlot(4, found), "/list")
    assert ("slot 4" in sentence and "\n" not in sentence) is isinstance(found, Unreadable)


@given(
    st.sampled_from([term(7), generation(3, 1)]),
    st.dictionaries(
        st.sampled_from(["number", "term", "members", "nonce", "time", "claimant", "endpoint", "kind"]),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=5)
        | st.lists(st.integers()),
        min_size=1,
    ),
)
def test_a_record_with_odd_fields_is_unreadable_or_one_that_could_be_written(record, changes):
    document = msgspec.json.decode(encode_record(record)) | changes
    found = decode_content(msgspec.json.encode(document))
    if not isinstance(found, Unreadable):
        assert decode_content(encode_record(found)) == found
