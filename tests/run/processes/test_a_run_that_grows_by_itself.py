"""``elastane run`` without ``--start``: its controller chooses the number of workers until a user does."""

import time

import pytest

from elastane.cli.devices import count_devices
from elastane.cluster.controller.run_controller import read_run_explanation
from elastane.run.nouns.control import AskResize, AskStatus

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(count_devices()[0] < 2, reason="this machine has one device"),
]
LARGEST = 8
HERE = min(LARGEST, count_devices()[0])
SEVERAL_PLANS_S = 3.0


def wait_for_target(attempts, workers):
    attempts.wait_until(
        lambda: (now := attempts.status) is not None and now.target == workers, f"{workers} workers"
    )


def list_requests(attempts):
    return [(event.who, event.why) for event in attempts.find_events("resize.requested")]


def test_a_run_grows_to_the_devices_of_this_machine(attempts, assert_attempts_equal_reference):
    attempts.begin(args=("--paced-from=5",), sized=False)
    wait_for_target(attempts, HERE)
    attempts.touch("gates")
    assert_attempts_equal_reference(attempts.wait_for_end())
    assert list_requests(attempts)[0] == ("controller", f"from 1 to {HERE} workers")
    assert read_run_explanation(attempts.run_dir).decisions[0].action == "start"


def test_a_number_of_workers_set_by_a_user_stays_until_the_user_sets_limits(
    attempts, assert_attempts_equal_reference
):
    attempts.begin(args=("--paced-from=5",), sized=False)
    wait_for_target(attempts, HERE)
    attempts.wait_for_step(4)
    attempts.ask(AskResize(workers=1))
    # The controller plans once a second.
    for _ in range(int(SEVERAL_PLANS_S / 0.1)):
        assert attempts.ask(AskStatus()).target == 1
        time.sleep(0.1)  # not a wait: the controller plans meanwhile, and changes nothing
    attempts.ask(AskResize(workers=1, limits=(1, LARGEST)))
    wait_for_target(attempts, HERE)
    attempts.touch("gates")
    assert_attempts_equal_reference(attempts.wait_for_end())
    assert [source for source, _ in list_requests(attempts)] == ["controller", "user", "controller"]


def test_the_next_attempt_of_a_run_grows_too(attempts, assert_attempts_equal_reference):
    attempts.begin("--checkpoint-every=2 steps", args=("--paced-from=9",), sized=False)
    wait_for_target(attempts, HERE)
    attempts.wait_for_event("checkpoint.saved")
    attempts.kill_everything()
    before = len(list_requests(attempts))
    attempts.resume()
    attempts.wait_until(lambda: len(list_requests(attempts)) > before, "the second attempt grows")
    attempts.touch("gates")
    assert_attempts_equal_reference(attempts.wait_for_end())
    # Measurements on a busy machine may make the controller change the number again later.
    assert list_requests(attempts)[before] == ("controller", f"from 1 to {HERE} workers")
