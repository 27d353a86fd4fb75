"""Histories by the hundred: whoever joins, leaves, hangs or dies, the state is that of the quiet run."""

import msgspec
import pytest

from elastane.api import control
from elastane.protocol.messages import AnyPeerMessage
from tests.simulator.__main__ import LAYOUTS, replay
from tests.simulator.faults import add_checkpoints, draw_plan, draw_storm
from tests.simulator.history import History, continue_run

SEEDS = [range(25), pytest.param(range(25, 150), marks=pytest.mark.long)]
STORMS = [range(6), pytest.param(range(6, 30), marks=pytest.mark.long)]
LAST_LINES = 60

encode_peer = msgspec.msgpack.encode
decode_peer = msgspec.msgpack.Decoder(AnyPeerMessage).decode


def play(some, then, repeat):
    """Play a plan and the attempt after it; a broken promise fails with the end of the transcript."""
    try:
        first = History(some)
        first.play()
        if (second := continue_run(first, then)) is not None:
            second.play()
    except AssertionError:
        told = []
        replay(some, then, told.append)
        story = "\n".join([told[0], *told[-LAST_LINES:]])
        pytest.fail(f"to repeat: python -m tests.simulator {repeat}\n{story}", pytrace=False)


@pytest.mark.parametrize("copies", LAYOUTS, ids=lambda copies: f"copies={copies or 'all'}")
@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_every_history_ends_as_the_quiet_run_does(copies, seeds):
    for seed in seeds:
        play(
            add_checkpoints(draw_plan(seed, copies)),
            draw_plan(seed + 1, copies),
            f"--histories 1 --seed {seed} --copies {copies or 'all'}",
        )


@pytest.mark.parametrize("copies", LAYOUTS, ids=lambda copies: f"copies={copies or 'all'}")
@pytest.mark.parametrize("seeds", STORMS, ids=str)
def test_so_do_those_without_a_quiet_step(copies, seeds):
    for seed in seeds:
        play(
            add_checkpoints(draw_storm(seed, copies)),
            draw_storm(seed + 1, copies),
            f"--storm --histories 1 --seed {seed} --copies {copies or 'all'}",
        )


def test_a_seed_tells_the_same_story_twice():
    first, second = [], []
    replay(draw_plan(3, 2), draw_plan(4, 2), first.append)
    replay(draw_plan(3, 2), draw_plan(4, 2), second.append)
    assert first == second
    assert len(first) > 100


class OverTheWire(History):
    """Every message is encoded and decoded on its way, as between real processes."""

    def __init__(self, some):
        super().__init__(some)
        send = self.streams.send
        self.streams.send = lambda sender, receiver, message, payload: send(
            sender, receiver, decode_peer(encode_peer(message)), payload
        )

    def to_coordinator(self, message):
        super().to_coordinator(control.decode_to_coordinator(control.encode(message)))

    def from_agent(self, report):
        super().from_agent(control.decode_to_coordinator(control.encode(report)))

    def to_worker(self, worker, message):
        super().to_worker(worker, control.decode_to_worker(control.encode(message)))

    def to_agent(self, message):
        super().to_agent(control.decode_to_agent(control.encode(message)))


@pytest.mark.parametrize("copies", LAYOUTS, ids=lambda copies: f"copies={copies or 'all'}")
def test_messages_mean_the_same_after_a_journey(copies):
    for seed in range(15):
        assert OverTheWire(draw_plan(seed, copies)).play() == History(draw_plan(seed, copies)).play()
