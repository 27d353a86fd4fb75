"""Whole sums and new values cross the wire once per node, however many workers a node has."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.protocol.messages import Published, SumsReady
from elastane.protocol.relays import choose_mates, choose_receivers
from tests.simulator.faults import HistoryPlan, build_layout
from tests.simulator.history import History
from tests.simulator.reference_run import Shape

BLOCKS, STEPS = 6, 5


class CountedHistory(History):
    """A history that counts the blocks that cross from one node to another one, by kind of message."""

    def __init__(self, plan):
        super().__init__(plan)
        self.crossings, self.inside = Counter(), Counter()
        send = self.peer_network.send

        def count(sender, receiver, message, payload):
            if isinstance(message, SumsReady | Published):
                items = message.blocks if isinstance(message, SumsReady) else message.units
                crosses = self.find_node(sender) != self.find_node(receiver)
                counter = self.crossings if crosses else self.inside
                counter[type(message).__name__] += len(items)
            send(sender, receiver, message, payload)

        self.peer_network.send = count


def play(nodes, workers, copies):
    shape = Shape(layout=build_layout(8, BLOCKS, copies), steps=STEPS)
    history = CountedHistory(
        HistoryPlan(seed=1, shape=shape, start=workers, max_workers=workers, shared=True, spread=nodes)
    )
    assert history.play().steps == STEPS
    return history


@pytest.mark.parametrize(("nodes", "workers"), [(2, 4), (2, 6), (3, 6), (4, 4)])
def test_whole_sums_cross_the_wire_once_per_node(nodes, workers):
    history = play(nodes, workers, None)
    assert history.crossings == {"SumsReady": STEPS * BLOCKS * (nodes - 1)}
    assert sum(history.inside.values()) == STEPS * BLOCKS * (workers - nodes)


def test_new_values_without_a_holder_on_a_node_cross_once():
    history = play(2, 6, 1)
    assert history.crossings == {"Published": STEPS * BLOCKS}
    assert history.inside == {"Published": STEPS * BLOCKS * 4}


def test_a_holder_on_a_node_publishes_there_instead_of_the_owner():
    history = play(2, 6, 2)
    assert history.crossings == {"SumsReady": STEPS * BLOCKS}
    assert history.inside == {"Published": STEPS * BLOCKS * 4}


def test_on_one_node_the_owner_sends_everything():
    history = play(1, 3, None)
    assert history.crossings == {}
    assert history.inside == {"SumsReady": STEPS * BLOCKS * 2}


@given(st.lists(st.sampled_from("abc"), min_size=2, max_size=8), st.integers(0, 9), st.data())
def test_every_worker_that_wants_an_item_receives_it_once(drawn, item, data):
    nodes = dict(enumerate(drawn))
    sender = data.draw(st.sampled_from(sorted(nodes)))
    wanting = tuple(sorted(data.draw(st.sets(st.sampled_from(sorted(nodes)))) - {sender}))
    first = choose_receivers(sender, wanting, nodes, item)
    received = Counter(first)
    for receiver in first:
        received.update(choose_mates(receiver, sender, wanting, nodes))
    assert received == Counter(wanting)
    assert max(Counter(nodes[w] for w in first if nodes[w] != nodes[sender]).values(), default=1) == 1
