"""DiscoveredCapacity from a host discovery script, as in Horovod."""

import pytest

from elastane.common.errors import BadInput
from elastane.common.untrusted_data import Malformed
from elastane.run.attempts.host_discovery import (
    DiscoveredCapacity,
    discover_capacity,
    measure_capacity,
    parse_hosts,
)
from elastane.run.nouns.spec import RunSpec

OWN = frozenset({"localhost", "here"})


@pytest.mark.parametrize(
    ("output", "hosts"),
    [
        ("", {}),
        ("localhost:4\n", {"localhost": 4}),
        ("here\n\n  there:2  \n", {"here": 1, "there": 2}),
        ("here:1\nhere:2\n", {"here": 3}),
        ("10.0.0.1:8\n[::1]:2\n", {"10.0.0.1": 8, "::1": 2}),
    ],
)
def test_each_line_is_a_host_and_its_slots(output, hosts):
    assert parse_hosts(output.encode()) == hosts


@pytest.mark.parametrize(
    "line", ["here: 4", "here:four", "a b", "here:-1", ":4", "here:999999", "\x1b[31mhere"]
)
def test_a_line_that_is_no_host_is_refused(line):
    with pytest.raises(Malformed, match="is not HOST or HOST:SLOTS"):
        parse_hosts(f"localhost:1\n{line}\n".encode())


def test_the_slots_of_this_machine_are_shared_among_workers():
    hosts = {"localhost": 3, "here": 2}
    assert measure_capacity(hosts, OWN, processes=2, low=1, high=8) == DiscoveredCapacity(2)


def test_the_limits_of_the_run_hold_and_are_said():
    assert measure_capacity({"here": 9}, OWN, processes=1, low=1, high=4) == DiscoveredCapacity(4)
    few = measure_capacity({"here": 1}, OWN, processes=1, low=2, high=4)
    assert few.workers == 2
    assert "too few for 2 workers" in few.remarks[0]


def test_other_machines_do_not_count_and_are_named():
    found = measure_capacity({"here": 1, "there": 7}, OWN, processes=1, low=1, high=8)
    assert found.workers == 1
    assert found.remarks == (
        "host there is not this machine, and a run spans one machine: its slots do not count",
    )


def test_a_script_is_run_as_a_command():
    spec = RunSpec(name="first", script="train.py", host_discovery="echo localhost:3")
    assert discover_capacity(spec) == DiscoveredCapacity(3)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo broken >&2; exit 3", "code 3: broken"),
        ("/no/such/script", "code 127"),
        ("echo what is this", "is not HOST"),
        ("head -c 2000000 /dev/zero", "more than 1048576 bytes"),
    ],
)
def test_a_script_that_cannot_be_used_says_why(script, says):
    with pytest.raises(BadInput, match=says):
        discover_capacity(RunSpec(name="first", script="train.py", host_discovery=script))
