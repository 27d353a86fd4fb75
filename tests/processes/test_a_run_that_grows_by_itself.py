"""``elastane run`` without ``--start``: its own controller decides, until somebody does by hand."""

import time

import pytest

from elastane.api.control import AskResize, AskStatus
from elastane.cli.devices import devices_here
from elastane.controller.embedded import explained

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(devices_here()[0] < 2, reason="nothing to grow into"),
]
MOST = 8
HERE = min(MOST, devices_here()[0])
LOOKS_S = 3.0


def until_target(lives, workers):
    lives.until(lambda: (now := lives.status) is not None and now.target == workers, f"{workers} workers")


def requested(lives):
    return [(event.who, event.why) for event in lives.events("resize.requested")]


def test_it_grows_into_the_devices_of_this_machine(lives, assert_as_if_nothing_happened):
    lives.begin(args=("--paced-from=5",), sized=False)
    until_target(lives, HERE)
    lives.open("gates")
    assert_as_if_nothing_happened(lives.ended())
    assert requested(lives)[0] == ("controller", f"from 1 to {HERE} workers")
    assert explained(lives.run_dir).decisions[0].action == "start"


def test_a_size_set_by_hand_stays_until_it_is_given_back(lives, assert_as_if_nothing_happened):
    lives.begin(args=("--paced-from=5",), sized=False)
    until_target(lives, HERE)
    lives.until_step(4)
    lives.ask(AskResize(workers=1))
    # Its controller looks once a second.
    for _ in range(int(LOOKS_S / 0.1)):
        assert lives.ask(AskStatus()).target == 1
        time.sleep(0.1)
    lives.ask(AskResize(workers=1, limits=(1, MOST)))
    until_target(lives, HERE)
    lives.open("gates")
    assert_as_if_nothing_happened(lives.ended())
    assert [who for who, _ in requested(lives)] == ["controller", "user", "controller"]


def test_its_next_life_grows_by_itself_too(lives, assert_as_if_nothing_happened):
    lives.begin("--checkpoint-every=2 steps", args=("--paced-from=9",), sized=False)
    until_target(lives, HERE)
    lives.until_event("checkpoint.saved")
    lives.kill_everything()
    before = len(requested(lives))
    lives.resume()
    lives.until(lambda: len(requested(lives)) > before, "the second life grows")
    lives.open("gates")
    assert_as_if_nothing_happened(lives.ended())
    # What it measures on a busy machine may make it think again later.
    assert requested(lives)[before] == ("controller", f"from 1 to {HERE} workers")
