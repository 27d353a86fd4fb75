"""``elastane run`` without ``--start``: its own controller decides, until somebody does by hand."""

import time

import pytest

from elastane.api.control import AskResize, AskStatus
from elastane.cli.devices import count_devices
from elastane.controller.run_controller import read_run_explanation

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(count_devices()[0] < 2, reason="nothing to grow into"),
]
MOST = 8
HERE = min(MOST, count_devices()[0])
LOOKS_S = 3.0


def until_target(attempts, workers):
    attempts.until(
        lambda: (now := attempts.status) is not None and now.target == workers, f"{workers} workers"
    )


def requested(attempts):
    return [(event.who, event.why) for event in attempts.events("resize.requested")]


def test_it_grows_into_the_devices_of_this_machine(attempts, assert_as_if_nothing_happened):
    attempts.begin(args=("--paced-from=5",), sized=False)
    until_target(attempts, HERE)
    attempts.open("gates")
    assert_as_if_nothing_happened(attempts.ended())
    assert requested(attempts)[0] == ("controller", f"from 1 to {HERE} workers")
    assert read_run_explanation(attempts.run_dir).decisions[0].action == "start"


def test_a_size_set_by_hand_stays_until_it_is_given_back(attempts, assert_as_if_nothing_happened):
    attempts.begin(args=("--paced-from=5",), sized=False)
    until_target(attempts, HERE)
    attempts.until_step(4)
    attempts.ask(AskResize(workers=1))
    # Its controller looks once a second.
    for _ in range(int(LOOKS_S / 0.1)):
        assert attempts.ask(AskStatus()).target == 1
        time.sleep(0.1)
    attempts.ask(AskResize(workers=1, limits=(1, MOST)))
    until_target(attempts, HERE)
    attempts.open("gates")
    assert_as_if_nothing_happened(attempts.ended())
    assert [who for who, _ in requested(attempts)] == ["controller", "user", "controller"]


def test_its_next_attempt_grows_by_itself_too(attempts, assert_as_if_nothing_happened):
    attempts.begin("--checkpoint-every=2 steps", args=("--paced-from=9",), sized=False)
    until_target(attempts, HERE)
    attempts.until_event("checkpoint.saved")
    attempts.kill_everything()
    before = len(requested(attempts))
    attempts.resume()
    attempts.until(lambda: len(requested(attempts)) > before, "the second attempt grows")
    attempts.open("gates")
    assert_as_if_nothing_happened(attempts.ended())
    # What it measures on a busy machine may make it think again later.
    assert requested(attempts)[before] == ("controller", f"from 1 to {HERE} workers")
