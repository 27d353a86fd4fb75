"""The machines that ``--hosts`` names."""

import socket

import pytest

from elastane.common import addresses
from elastane.common.errors import BadInput
from elastane.common.untrusted_data import Malformed
from elastane.run.nouns.control import AgentReport, decode_to_coordinator, encode
from elastane.run.nouns.hosts import RunHost, find_own_host, parse_run_hosts


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
    ("host", "node"), [("first", "host-first"), ("7", "host-7"), ("First", "host-first")]
)
def test_a_host_whose_name_means_something_else_in_commands_has_another_one(host, node) -> None:
    assert parse_run_hosts(f"{host}:8")[0].node == node


@pytest.mark.parametrize("name", ["first", "7", "007"])
def test_no_report_of_an_agent_has_a_name_that_means_something_else_in_commands(name) -> None:
    with pytest.raises(Malformed, match=r"\$\.node"):
        decode_to_coordinator(encode(AgentReport(pid=1, target=1, term=1, node=name)))
    report = AgentReport(pid=1, target=1, term=1, node=f"{name}-a")
    assert decode_to_coordinator(encode(report)) == report


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a:",
        "a:0",
        "a:x",
        "a:99999",
        "a b",
        "a;rm",
        "-oProxyCommand=x",
        "$(x)",
        "a,,b",
        "a..b",
        "é",
        "a:8:9",
        "a.",
    ],
)
def test_what_is_no_host_is_refused(text) -> None:
    with pytest.raises(BadInput, match="--hosts"):
        parse_run_hosts(text)


@pytest.mark.parametrize("text", ["[::1]:8", "a:8,[fe80::]", "-a", "x" * 64])
def test_for_a_host_that_cannot_name_a_machine_an_alias_is_advised(text) -> None:
    with pytest.raises(BadInput, match="cannot name a machine of a run") as caught:
        parse_run_hosts(text)
    assert "alias for its address in ~/.ssh/config" in caught.value.do


def test_a_machine_is_named_once() -> None:
    with pytest.raises(BadInput, match="--hosts names a twice"):
        parse_run_hosts("a:8,b:8,A:4")
    with pytest.raises(BadInput, match="names 2000 machines, more than"):
        parse_run_hosts(",".join(f"h{number}" for number in range(2000)))


def test_this_machine_is_found_by_its_name() -> None:
    own = RunHost(socket.gethostname(), 2)
    assert find_own_host((RunHost("elsewhere.example", 1), own)) == own
    assert find_own_host((RunHost("elsewhere.example", 1),)) is None


@pytest.fixture
def resolve(monkeypatch):
    """Return a function that gives a name its addresses; no other name has one."""
    names, usual = {}, socket.getaddrinfo

    def resolve_name(host, port, *others, **named):
        if others:
            # A thread of an earlier test connects to an address.
            return usual(host, port, *others, **named)
        if host not in names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in names[host]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve_name)
    return names.__setitem__


def test_this_machine_is_found_by_any_of_its_addresses(resolve) -> None:
    resolve("127.0.0.2", ["127.0.0.2"])
    resolve("node-a", ["192.0.2.7"])
    resolve("node-b", ["192.0.2.8", "127.0.0.3"])
    for own in (RunHost("127.0.0.2", 1), RunHost("me@node-b", 1)):
        assert find_own_host((RunHost("node-a"), RunHost("unknown"), own)) == own
    assert find_own_host((RunHost("node-a"), RunHost("unknown"))) is None


def test_no_address_counts_where_a_socket_can_be_bound_to_any(resolve, monkeypatch) -> None:
    monkeypatch.setattr(addresses, "_can_bind", lambda _: True)
    resolve("node-a", ["192.0.2.7"])
    own = RunHost(socket.gethostname(), 2)
    assert find_own_host((RunHost("node-a"), own)) == own
    assert find_own_host((RunHost("node-a"),)) is None
