"""The machines that ``--hosts`` names."""

import socket

import pytest

from elastane.api.errors import BadInput
from elastane.api.hosts import RunHost, find_own_host, parse_run_hosts


def test_hosts_have_users_slots_and_numeric_addresses() -> None:
    assert parse_run_hosts("a:8, me@B_1.example,[fd00::7]:2,10.0.0.5:1") == (
        RunHost("a", 8),
        RunHost("me@B_1.example"),
        RunHost("fd00::7", 2),
        RunHost("10.0.0.5", 1),
    )


def test_a_machine_is_named_by_its_host_without_the_user() -> None:
    (host,) = parse_run_hosts("me@B_1.example:3")
    assert (host.host, host.node) == ("B_1.example", "b-1.example")
    (host,) = parse_run_hosts("[fd00::7]:2")
    assert host.node == "fd00--7"


@pytest.mark.parametrize(
    "text",
    ["", "a:", "a:0", "a:x", "a:99999", "a b", "a;rm", "-oProxyCommand=x", "$(x)", "a,,b", "é", "a:8:9"],
)
def test_what_is_no_host_is_refused(text) -> None:
    with pytest.raises(BadInput, match="--hosts"):
        parse_run_hosts(text)


def test_a_machine_is_named_once() -> None:
    with pytest.raises(BadInput, match="--hosts names a twice"):
        parse_run_hosts("a:8,b:8,A:4")
    with pytest.raises(BadInput, match="names 2000 machines, more than"):
        parse_run_hosts(",".join(f"h{number}" for number in range(2000)))


def test_this_machine_is_found_by_its_name() -> None:
    own = RunHost(socket.gethostname(), 2)
    assert find_own_host((RunHost("elsewhere.example", 1), own)) == own
    assert find_own_host((RunHost("elsewhere.example", 1),)) is None
