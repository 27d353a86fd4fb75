"""The plan of traffic and of partial sums is what the protocol does."""

from collections import Counter

import pytest

from elastane.integrations.recipes.traffic import (
    count_held_bytes,
    count_node_traffic,
    count_slots,
    count_traffic,
    divide_ranks,
)
from elastane.run.protocol import messages
from elastane.run.protocol.layout import SMALLEST_BLOCK
from elastane.run.worker.state.gradient_slots import GradientSlots
from elastane.run.worker.state.slot_memory import HostSlots
from tests.run.simulator.exchange import Exchange
from tests.run.simulator.faults import HistoryPlan, build_layout
from tests.run.simulator.history import History
from tests.run.simulator.reference_run import Shape

BLOCKS = 16
ELEMENT = 4
SECTIONS = ((BLOCKS * SMALLEST_BLOCK, ELEMENT),)
BLOCK_BYTES = SMALLEST_BLOCK * ELEMENT


def watch_frames(monkeypatch, workers, virtual_ranks, copies):
    """Play a history; return the bytes of each kind of frame, by round, while all workers are members."""
    frames, members = {}, {}
    build = Exchange.build_payload

    def record(exchange, peer, message):
        generation = exchange.member.generation
        if isinstance(message, messages.PartialSumsReady | messages.SumsReady | messages.Published):
            blocks = message.units if isinstance(message, messages.Published) else message.blocks
            parts = len(message.parts) if isinstance(message, messages.PartialSumsReady) else 1
            counts = frames.setdefault(message.round, Counter())
            counts[type(message).__name__] += parts * len(blocks) * BLOCK_BYTES
            members.setdefault(message.round, set()).add(len(generation.workers))
        return build(exchange, peer, message)

    monkeypatch.setattr(Exchange, "build_payload", record)
    shape = Shape(layout=build_layout(virtual_ranks, BLOCKS, copies), steps=12)
    assert History(HistoryPlan(seed=1, shape=shape, start=workers, max_workers=workers)).play().code == 0
    return [counts for round_, counts in frames.items() if members[round_] == {workers}]


@pytest.mark.parametrize(
    ("workers", "virtual_ranks", "copies"),
    [(2, 4, None), (2, 4, 1), (4, 8, None), (4, 8, 2), (3, 3, None), (3, 3, 2)],
)
def test_the_planned_traffic_of_a_step_is_that_of_the_protocol(monkeypatch, workers, virtual_ranks, copies):
    planned = count_traffic(SECTIONS, virtual_ranks, workers, copies)
    expected = Counter(
        {
            "PartialSumsReady": planned.partial_sums_bytes,
            "SumsReady": planned.sums_bytes,
            "Published": planned.published_bytes,
        }
    )
    found = watch_frames(monkeypatch, workers, virtual_ranks, copies)
    assert +expected in found, found


@pytest.mark.parametrize("copies", [None, 1, 2, 3])
@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_the_whole_traffic_does_not_depend_on_copies(workers, copies):
    planned = count_traffic(SECTIONS, 8, workers, copies)
    assert planned.total_bytes == 2 * (workers - 1) * BLOCKS * BLOCK_BYTES
    assert planned.largest_bytes <= planned.total_bytes
    held = count_held_bytes(SECTIONS, workers, copies)
    assert held == BLOCKS * BLOCK_BYTES * min(copies or workers, workers) // workers


@pytest.mark.parametrize("copies", [None, 1, 2])
@pytest.mark.parametrize(("workers", "nodes", "virtual_ranks"), [(4, 2, 8), (6, 2, 8), (6, 3, 12), (4, 4, 4)])
def test_the_planned_traffic_between_nodes_is_that_of_the_protocol(workers, nodes, virtual_ranks, copies):
    shape = Shape(layout=build_layout(virtual_ranks, BLOCKS, copies), steps=6)
    history = History(
        HistoryPlan(seed=1, shape=shape, start=workers, max_workers=workers, shared=True, spread=nodes)
    )
    traffic = {}
    send = history.peer_network.send

    def count(sender, receiver, message, payload):
        kinds = messages.PartialSumsReady | messages.SumsReady | messages.Published
        if isinstance(message, kinds) and history.find_node(sender) != history.find_node(receiver):
            blocks = message.units if isinstance(message, messages.Published) else message.blocks
            parts = len(message.parts) if isinstance(message, messages.PartialSumsReady) else 1
            traffic[message.round] = traffic.get(message.round, 0) + parts * len(blocks) * BLOCK_BYTES
        send(sender, receiver, message, payload)

    history.peer_network.send = count
    assert history.play().code == 0
    planned = count_node_traffic(SECTIONS, virtual_ranks, [workers // nodes] * nodes, copies)
    assert planned.total_bytes in traffic.values(), traffic


def test_the_bytes_of_a_node_do_not_depend_on_its_workers():
    gradients = BLOCKS * BLOCK_BYTES
    for each in (1, 2, 4):
        assert count_node_traffic(SECTIONS, 16, [each] * 2, None).largest_bytes == gradients
        assert count_node_traffic(SECTIONS, 16, [each] * 4, 2).largest_bytes == 2 * gradients * 3 // 4
    assert count_node_traffic(SECTIONS, 16, [4], None).total_bytes == 0


@pytest.mark.parametrize(
    ("virtual_ranks", "nodes", "each", "parts"),
    [
        (8, 2, 2, 1),
        (24, 3, 1, 1),  # 8 + 8 + 8
        (48, 3, 2, 1),
        (32, 4, 2, 1),
        (24, 2, 2, 2),  # (8 + 4) + (4 + 8)
        (24, 2, 8, 1),  # 16 + 8, where every worker has one or two
        (48, 4, 2, 2),
        (16, 3, 1, 3),  # (4 + 1) + (1 + 2 + 2) + (2 + 4)
        (64, 3, 2, 4),
    ],
)
def test_a_node_sends_as_many_times_the_gradients_as_its_ranks_are_nodes_of_the_tree(
    virtual_ranks, nodes, each, parts
):
    # As many equal blocks as all these numbers of workers divide.
    sections = ((SMALLEST_BLOCK, ELEMENT),) * 48
    gradients = len(sections) * BLOCK_BYTES
    traffic = count_node_traffic(sections, virtual_ranks, [each] * nodes, None)
    # Partial sums go to the owners on other nodes, and the sums of its own blocks to each of them.
    left = gradients * (nodes - 1) // nodes
    assert traffic.largest_bytes == (parts + 1) * left
    if parts == 1:
        assert traffic.total_bytes == nodes * 2 * left
    else:
        assert traffic.largest_bytes > 1.1 * 2 * left


def test_ragged_shares_send_more_partial_sums():
    even, ragged = (count_traffic(SECTIONS, ranks, 3, None) for ranks in (3, 8))
    assert ragged.partial_sums_bytes > even.partial_sums_bytes
    assert ragged.sums_bytes == even.sums_bytes


class EmptyLayout:
    sections = ()
    parameters = ()


@pytest.mark.parametrize("virtual_ranks", [1, 2, 3, 5, 8, 13, 16])
def test_the_planned_partial_sums_are_the_slots_of_a_worker(virtual_ranks):
    for workers in range(1, virtual_ranks + 1):
        for start, stop in divide_ranks(virtual_ranks, [workers]):
            slots = GradientSlots(EmptyLayout(), HostSlots(EmptyLayout()), exact=True)
            slots.begin_round(virtual_ranks, alone=workers == 1)
            rank = start
            while rank < stop:
                pair = slots.has_sibling(rank, rank + 1 if rank + 1 < stop else None)
                rank += pair
                slots.assign(rank, with_sibling=pair)
                rank += 1
            assert count_slots((start, stop), virtual_ranks) == len(slots.arenas)
