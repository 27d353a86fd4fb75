"""Hundreds of histories with joins, leaves, hangs and deaths: all end as the reference run does."""

import logging

import msgspec
import pytest

from elastane.api import control
from elastane.protocol.messages import AnyPeerMessage
from tests.simulator.__main__ import LAYOUTS, make_history, replay
from tests.simulator.faults import add_checkpoints, draw_plan, draw_storm
from tests.simulator.history import History, continue_run
from tests.simulator.network_plans import draw_network
from tests.simulator.node_losses import draw_node_losses
from tests.simulator.node_plans import draw_nodes

SEEDS = [range(25), pytest.param(range(25, 150), marks=pytest.mark.long)]
STORMS = [range(6), pytest.param(range(6, 30), marks=pytest.mark.long)]
NETWORKS = [
    range(10),
    *(pytest.param(range(start, start + 150), marks=pytest.mark.long) for start in range(10, 610, 150)),
]
"""With each number of copies; ``python -m tests.simulator --network --histories 2500`` plays 10,000."""

LOSSES = [range(10), pytest.param(range(10, 150), marks=pytest.mark.long)]

NODES = [range(6), pytest.param(range(6, 56), marks=pytest.mark.long)]
"""On several nodes; ``python -m tests.simulator --nodes --histories 2500`` plays 10,000."""

BROKEN_NODES = [(60, 2), (94, 1), (94, 3), (98, None)]
"""Of the seeds from 6 to 105 these break a promise, each with this number of copies; they wait for a fix.

In 60 the last state is in no checkpoint, in 94 the run is stuck, and in 98 a healthy member is killed.
"""

LAST_LINES = 60

encode_peer = msgspec.msgpack.encode
decode_peer = msgspec.msgpack.Decoder(AnyPeerMessage).decode


def play(plan, next_plan, options):
    """Play a plan and the attempt after it; a broken promise fails with the end of the transcript."""
    try:
        first = make_history(plan)
        first.play()
        if (second := continue_run(first, next_plan)) is not None:
            second.play()
    except AssertionError:
        lines = []
        replay(plan, next_plan, lines.append)
        end = "\n".join([lines[0], *lines[-LAST_LINES:]])
        pytest.fail(f"to repeat: python -m tests.simulator {options}\n{end}", pytrace=False)


@pytest.mark.parametrize("copies", LAYOUTS, ids=lambda copies: f"copies={copies or 'all'}")
@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_every_history_ends_with_the_state_of_the_reference_run(copies, seeds):
    for seed in seeds:
        play(
            add_checkpoints(draw_plan(seed, copies)),
            draw_plan(seed + 1, copies),
            f"--histories 1 --seed {seed} --copies {copies or 'all'}",
        )


@pytest.mark.parametrize("copies", LAYOUTS, ids=lambda copies: f"copies={copies or 'all'}")
@pytest.mark.parametrize("seeds", STORMS, ids=str)
def test_every_storm_ends_with_the_state_of_the_reference_run(copies, seeds):
    for seed in seeds:
        play(
            add_checkpoints(draw_storm(seed, copies)),
            draw_storm(seed + 1, copies),
            f"--storm --histories 1 --seed {seed} --copies {copies or 'all'}",
        )


@pytest.mark.parametrize("copies", LAYOUTS, ids=lambda copies: f"copies={copies or 'all'}")
@pytest.mark.parametrize("seeds", NETWORKS, ids=str)
def test_every_history_with_network_faults_ends_with_the_state_of_the_reference_run(copies, seeds):
    for seed in seeds:
        play(
            add_checkpoints(draw_network(seed, copies)),
            draw_network(seed + 1, copies),
            f"--network --histories 1 --seed {seed} --copies {copies or 'all'}",
        )


@pytest.mark.parametrize("copies", LAYOUTS, ids=lambda copies: f"copies={copies or 'all'}")
@pytest.mark.parametrize("seeds", LOSSES, ids=str)
def test_every_history_that_loses_nodes_ends_with_the_state_of_the_reference_run(copies, seeds):
    for seed in seeds:
        play(
            add_checkpoints(draw_node_losses(seed, copies)),
            draw_node_losses(seed + 1, copies),
            f"--node-losses --histories 1 --seed {seed} --copies {copies or 'all'}",
        )


@pytest.mark.parametrize("copies", LAYOUTS[::2], ids=lambda copies: f"copies={copies or 'all'}")
@pytest.mark.parametrize("seeds", NODES, ids=str)
def test_every_history_on_several_nodes_is_one_history(copies, seeds, caplog):
    # A term that waits for the claim list warns of that.
    caplog.set_level(logging.ERROR)
    for seed in seeds:
        play(
            add_checkpoints(draw_nodes(seed, copies)),
            draw_nodes(seed + 1, copies),
            f"--nodes --histories 1 --seed {seed} --copies {copies or 'all'}",
        )


@pytest.mark.long
@pytest.mark.xfail(raises=pytest.fail.Exception, strict=True, reason="known to break")
@pytest.mark.parametrize(("seed", "copies"), BROKEN_NODES)
def test_the_histories_on_several_nodes_that_still_break(seed, copies, caplog):
    caplog.set_level(logging.ERROR)
    play(add_checkpoints(draw_nodes(seed, copies)), draw_nodes(seed + 1, copies), f"--nodes --seed {seed}")


def test_a_seed_gives_the_same_transcript_twice():
    first, second = [], []
    replay(draw_plan(3, 2), draw_plan(4, 2), first.append)
    replay(draw_plan(3, 2), draw_plan(4, 2), second.append)
    assert first == second
    assert len(first) > 100


class EncodedHistory(History):
    """A history that encodes and decodes every message, as real processes do."""

    def __init__(self, plan):
        super().__init__(plan)
        send = self.peer_network.send
        self.peer_network.send = lambda sender, receiver, message, payload: send(
            sender, receiver, decode_peer(encode_peer(message)), payload
        )

    def send_to_coordinator(self, message):
        super().send_to_coordinator(control.decode_to_coordinator(control.encode(message)))

    def send_agent_report(self, report):
        super().send_agent_report(control.decode_to_coordinator(control.encode(report)))

    def send_to_worker(self, worker, message):
        super().send_to_worker(worker, control.decode_to_worker(control.encode(message)))

    def send_to_agent(self, message, node=None):
        super().send_to_agent(control.decode_to_agent(control.encode(message)), node)


@pytest.mark.parametrize("copies", LAYOUTS, ids=lambda copies: f"copies={copies or 'all'}")
def test_encoded_and_decoded_messages_give_the_same_verdict(copies):
    for seed in range(15):
        assert EncodedHistory(draw_plan(seed, copies)).play() == History(draw_plan(seed, copies)).play()
