"""An event of a gang counts when all of its processes have posted it."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.run.protocol.commit import compute_outcome
from elastane.run.protocol.events import (
    Applied,
    Computed,
    Measured,
    PartialSumsFinal,
    Reduced,
    RoundEntered,
    StorageRefused,
)
from elastane.run.protocol.gangs import Deliveries, GangDisagreement, GangResults
from elastane.run.protocol.layout import REPLICATED_BLOCK
from elastane.run.protocol.messages import Leaf, PartialSum, Vote


def test_an_answer_counts_when_every_process_has_given_it():
    results = GangResults(3)
    first, second = Reduced(4, (0, 1)), Reduced(4, (2,))
    assert results.add(0, first) == results.add(2, first) == results.add(0, second) == []
    assert results.add(1, first) == [first]
    assert results.add(1, second) == []
    assert results.add(2, second) == [second]


def test_an_answer_that_is_the_same_in_each_step_is_counted_anew():
    results = GangResults(2)
    for _ in range(3):
        assert results.add(1, Applied()) == []
        assert results.add(0, Applied()) == [Applied()]


def test_each_process_computes_a_virtual_rank_of_its_own():
    results = GangResults(2)
    for rank in (0, 1):
        assert results.add(rank, Computed(Leaf(rank, 5))) == [Computed(Leaf(rank, 5))]


def test_processes_that_compute_a_virtual_rank_together_count_once():
    results = GangResults(4, sharing=2)
    for loss in (0.5, math.nan):
        leaf = Computed(Leaf(3, 5, loss=loss))
        assert results.add(2, leaf) == []
        (counted,) = results.add(3, leaf)
        assert counted == leaf or math.isnan(loss)


def test_processes_that_compute_a_virtual_rank_together_have_the_same_loss():
    results = GangResults(2, sharing=2)
    results.add(0, Computed(Leaf(3, 5, loss=0.5)))
    with pytest.raises(
        GangDisagreement, match="process 0 and process 1 have computed virtual rank 3 together"
    ):
        results.add(1, Computed(Leaf(3, 5, loss=0.25)))


def test_copies_of_a_part_of_the_model_are_equal():
    results = GangResults(3)
    copies = [{"w of process 0": "a"}, {"v of process 1": "b"}, {"w of process 0": "c"}]
    for process in (0, 1):
        results.add(process, Measured(1, {}, {}, {}, copies[process]))
    with pytest.raises(GangDisagreement, match="process 0 and process 2 have different copies of w"):
        results.add(2, Measured(1, {}, {}, {}, copies[2]))


def announce(results, process, assignment, blocks, *spans):
    """Announce parts, each in a slot that only this process uses for it."""
    parts = tuple(PartialSum((span,), 10 * process + number) for number, span in enumerate(spans))
    return results.add(process, PartialSumsFinal(assignment, blocks, parts))


def test_a_part_of_a_block_is_final_when_it_is_on_every_process():
    results = GangResults(2)
    assert announce(results, 0, 1, (0, 1), (0, 2)) == []
    assert announce(results, 1, 1, (1, 2), (0, 2)) == [PartialSumsFinal(1, (1,), (PartialSum(((0, 2),), 0),))]
    assert results.find_slots(((0, 2),)) == (0, 10)


def test_processes_may_announce_their_parts_in_other_groups():
    results = GangResults(2)
    assert announce(results, 0, 1, (0,), (0, 2)) == []
    assert announce(results, 1, 1, (0,), (0, 2), (2, 3)) == [
        PartialSumsFinal(1, (0,), (PartialSum(((0, 2),), 0),))
    ]
    assert announce(results, 0, 1, (0,), (2, 3)) == [PartialSumsFinal(1, (0,), (PartialSum(((2, 3),), 0),))]


def test_a_part_of_an_older_assignment_is_void():
    results = GangResults(2)
    assert announce(results, 0, 1, (0,), (0, 2)) == []
    assert announce(results, 1, 2, (0,), (0, 2)) == []
    # Process 0 learns of the assignment later, and announces what it has announced already.
    assert announce(results, 1, 1, (0,), (0, 2)) == []
    assert announce(results, 0, 2, (0,), (0, 2)) == [PartialSumsFinal(2, (0,), (PartialSum(((0, 2),), 0),))]


@given(order=st.permutations(list(itertools.product(range(3), range(4)))))
def test_every_block_is_announced_once_in_whatever_order_the_processes_are(order):
    results, announced = GangResults(3), []
    for process, block in order:
        for final in announce(results, process, 1, (block,), (0, 4)):
            announced += final.blocks
    assert sorted(announced) == [0, 1, 2, 3]


def measure(norm, values="v", *, kept="k", digests=True):
    found = {2: (values, "s")} if digests else {}
    return Measured(7, {2: (norm,)}, found, {"run.keep": kept})


def test_a_gang_has_the_squares_of_all_its_processes_which_are_rounded_with_those_of_all_gangs():
    results = GangResults(2)
    assert results.add(0, measure(1.0)) == []
    (measured,) = results.add(1, measure(2.0**-53))
    assert measured.norms == {2: (1.0, 2.0**-53)}
    # Rounded here first, the sum of both gangs would be 1.0.
    other = Vote(generation=1, round=1, leaves=(), norms={0: (2.0**-53,)})
    votes = {0: Vote(generation=1, round=1, leaves=(), norms=measured.norms), 1: other}
    assert compute_outcome(1, 1, {}, votes).norm_squared == 1.0 + 2.0**-52


def test_a_digest_of_a_gang_depends_on_every_process():
    def combine(*values):
        results = GangResults(2)
        results.add(1, measure(1.0, values[1]))
        (measured,) = results.add(0, measure(1.0, values[0]))
        return measured.digests[2]

    assert combine("a", "b") == combine("a", "b")
    assert len({combine(*values) for values in (("a", "b"), ("a", "c"), ("c", "b"), ("b", "a"))}) == 4


def test_what_only_one_process_has_is_part_of_the_digest():
    results = GangResults(2)
    results.add(0, Measured(1, {}, {REPLICATED_BLOCK: ("a", "")}))
    (measured,) = results.add(1, Measured(1, {}, {}))
    assert measured.digests[REPLICATED_BLOCK][0]
    assert not measured.digests[REPLICATED_BLOCK][1]


def test_processes_that_differ_in_kept_values_disagree():
    results = GangResults(2)
    results.add(0, measure(1.0, kept="0"))
    with pytest.raises(GangDisagreement, match="process 0 and process 1 differ"):
        results.add(1, measure(1.0, kept="1"))


def test_processes_in_different_rounds_disagree():
    results = GangResults(2)
    results.add(1, RoundEntered("train", 8))
    with pytest.raises(GangDisagreement, match="process 0 is in a round to settle, process 1"):
        results.add(0, RoundEntered("settle", 0))


def test_storage_refuses_a_gang_while_it_refuses_a_process():
    results = GangResults(2)
    assert results.add(1, StorageRefused(True)) == [StorageRefused(True)]
    assert results.add(0, StorageRefused(True)) == []
    assert results.add(1, StorageRefused(False)) == []
    assert results.add(0, StorageRefused(False)) == [StorageRefused(False)]


def test_a_message_waits_until_every_process_can_read_its_memory():
    deliveries = Deliveries(3)
    deliveries.add("sums")
    deliveries.add("loss")
    assert deliveries.find_next() == "sums"
    deliveries.begin(frozenset({"arena"}))
    assert deliveries.find_next() is None
    assert not deliveries.answer(2, is_readable=True)
    assert deliveries.answer(1, is_readable=True)
    assert deliveries.take() == ("sums", True)
    # The loss of its sender follows, and the memory stays mapped.
    assert deliveries.find_next() == "loss"
    assert deliveries.take() == ("loss", True)
    assert deliveries.are_mapped(frozenset({"arena"}))
    assert not deliveries.are_mapped(frozenset({"arena", "another"}))
    assert not deliveries.are_mapped(None)


def test_memory_that_one_process_cannot_map_is_asked_about_again():
    deliveries = Deliveries(3)
    deliveries.add("sums")
    deliveries.begin(frozenset({"arena"}))
    deliveries.answer(1, is_readable=False)
    deliveries.answer(2, is_readable=True)
    assert deliveries.take() == ("sums", False)
    assert not deliveries.are_mapped(frozenset({"arena"}))
    deliveries.add("more")
    assert deliveries.take() == ("more", True)


def test_a_message_that_process_0_cannot_read_is_dropped():
    deliveries = Deliveries(2)
    deliveries.add("sums")
    deliveries.refuse()
    deliveries.begin(frozenset({"arena"}))
    deliveries.answer(1, is_readable=True)
    assert deliveries.take() == ("sums", False)
