"""Partial sums, whole sums and new values cross the wire once per node, however many workers it has."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.run.protocol.messages import PartialSumsReady, Published, SumsReady
from elastane.run.protocol.relays import choose_leader, choose_mates, choose_receivers
from elastane.run.protocol.shares import assign_shares
from elastane.run.protocol.tree import cover
from tests.run.simulator.faults import HistoryPlan, build_layout
from tests.run.simulator.history import History
from tests.run.simulator.reference_run import Shape

BLOCKS, STEPS = 6, 5


class CountedHistory(History):
    """A history that counts the blocks that cross from one node to another one, by kind of message."""

    def __init__(self, plan):
        super().__init__(plan)
        self.crossings, self.inside = Counter(), Counter()
        # By round, block and sending node: the parts that have crossed.
        self.crossed_parts = Counter()
        send = self.peer_network.send

        def count(sender, receiver, message, payload):
            if isinstance(message, SumsReady | Published):
                items = message.blocks if isinstance(message, SumsReady) else message.units
                crosses = self.find_node(sender) != self.find_node(receiver)
                counter = self.crossings if crosses else self.inside
                counter[type(message).__name__] += len(items)
            if isinstance(message, PartialSumsReady) and self.find_node(sender) != self.find_node(receiver):
                for block in message.blocks:
                    self.crossed_parts[message.round, block, self.find_node(sender)] += len(message.parts)
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


def find_shares_of_nodes(history, workers):
    """Return the virtual ranks of each node, if all workers are equally fast."""
    ranks = {}
    # The members are in the order of their nodes.
    members = sorted(range(workers), key=lambda worker: (history.find_node(worker), worker))
    for worker, share in zip(members, assign_shares(8, (1.0,) * workers), strict=True):
        ranks.setdefault(history.find_node(worker), []).extend(range(*share))
    return ranks


@pytest.mark.parametrize("copies", [None, 2])
@pytest.mark.parametrize(("nodes", "workers"), [(2, 4), (2, 6), (2, 8), (3, 6), (4, 4)])
def test_the_partial_sums_of_a_node_cross_the_wire_merged(nodes, workers, copies):
    history = play(nodes, workers, copies)
    most = {node: len(cover(some, 8)) for node, some in find_shares_of_nodes(history, workers).items()}
    # Each other node sends its part of each block of each step.
    assert len(history.crossed_parts) == STEPS * BLOCKS * (nodes - 1)
    assert all(count <= most[node] for (_, _, node), count in history.crossed_parts.items())


def test_aligned_nodes_send_one_part_of_each_block():
    history = play(2, 8, None)
    assert sum(history.crossed_parts.values()) == STEPS * BLOCKS


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


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=8), st.integers(0, 9), st.data())
def test_the_workers_of_a_node_agree_on_the_leader_among_them(drawn, block, data):
    nodes = dict(enumerate(drawn))
    owner = data.draw(st.sampled_from(sorted(nodes)))
    for node in set(drawn):
        mates = [worker for worker in nodes if nodes[worker] == node]
        (leader,) = {choose_leader(worker, owner, nodes, block) for worker in mates}
        assert leader == owner if nodes[owner] == node else leader in mates


def test_the_workers_of_a_node_lead_equally_many_blocks_of_other_nodes():
    nodes = {0: "a", 1: "b", 2: "b", 3: "b"}
    assert Counter(choose_leader(1, 0, nodes, block) for block in range(9)) == {1: 3, 2: 3, 3: 3}
