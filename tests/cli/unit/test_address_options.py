"""Where a machine of a run listens: ``--listen``, ``--advertise`` and ``--ports``."""

import socket

import pytest

from elastane.cli.runs.address_options import (
    DEFAULT_ADDRESS,
    build_machine_address,
    check_ports,
    complete_listen,
    read_ports,
)
from elastane.common import addresses
from elastane.common.errors import BadInput
from elastane.run.nouns.machine_address import MachineAddress, publish_address, read_machine_address
from elastane.run.nouns.rundir import RunDir

ANY = "0.0.0.0"  # noqa: S104 - refused, or translated
VALUED = {"--listen", "--name", "--ports"}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--listen train.py", "--listen default train.py"),
        ("--listen --name first train.py", "--listen default --name first train.py"),
        ("--listen 10.0.0.5 train.py", "--listen 10.0.0.5 train.py"),
        ("--listen fd00::5 train.py", "--listen fd00::5 train.py"),
        ("--listen lo train.py", "--listen lo train.py"),
        ("--listen", "--listen default"),
        ("--name --listen train.py", "--name --listen train.py"),
        ("train.py --listen x", "train.py --listen x"),
        ("-- --listen x", "-- --listen x"),
    ],
)
def test_listen_may_stand_without_an_address(typed, meant) -> None:
    assert complete_listen(typed.split(), VALUED, script_last=True) == meant.split()


def test_without_a_script_listen_may_follow_an_argument() -> None:
    words = complete_listen(["llama-tiny", "--listen", "--name", "a"], VALUED, script_last=False)
    assert words == ["llama-tiny", "--listen", DEFAULT_ADDRESS, "--name", "a"]


def test_the_address_is_that_of_the_default_route_or_of_an_interface() -> None:
    assert build_machine_address(DEFAULT_ADDRESS, None, None, lambda: "10.0.0.5") == MachineAddress(
        "10.0.0.5"
    )
    assert build_machine_address("lo", None, None).host == "127.0.0.1"
    with pytest.raises(BadInput, match="neither an address nor a network interface") as error:
        build_machine_address("eth77", None, None)
    assert "lo" in error.value.do


def test_a_machine_without_a_route_is_told_to_name_its_address(monkeypatch) -> None:
    monkeypatch.setattr(addresses, "OUTSIDE", ("999.0.0.1",))
    with pytest.raises(BadInput, match="no default route"):
        build_machine_address(DEFAULT_ADDRESS, None, None)


def test_every_interface_needs_an_advertised_address() -> None:
    with pytest.raises(BadInput, match="names every interface"):
        build_machine_address(ANY, None, None)
    address = build_machine_address(ANY, "203.0.113.9", None)
    assert address.reached_at == "203.0.113.9"
    with pytest.raises(BadInput, match="--advertise gateway is not an address"):
        build_machine_address("127.0.0.1", "gateway", None)


@pytest.mark.parametrize("text", ["", "5", "9-5", "0-5", "1-70000", "a-b", "-1-5", "1-5-9"])
def test_what_is_no_range_of_ports_is_refused(text) -> None:
    with pytest.raises(BadInput, match="is not a range of TCP ports"):
        read_ports(text)


def test_a_range_of_ports_that_is_too_small_is_refused_before_anything_starts() -> None:
    check_ports(MachineAddress(ports=(29500, 29509)), 4)
    check_ports(MachineAddress(), 1000)
    with pytest.raises(BadInput, match="9 ports, too few for 4 workers") as error:
        check_ports(MachineAddress(ports=(29500, 29508)), 4)
    assert "--ports 29500-29509" in error.value.do


def test_a_taken_port_is_skipped_and_a_full_range_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        address = MachineAddress(ports=(port, min(65535, port + 5)))
        with address.listen(1) as found:
            assert port < found.getsockname()[1] <= port + 5
        with pytest.raises(OSError, match=f"no port from {port} to {port} is free"):
            MachineAddress(ports=(port, port)).listen(1)


def test_the_processes_of_a_machine_read_its_place(tmp_path) -> None:
    first, other = RunDir(tmp_path), RunDir(tmp_path, "b")
    publish_address(first, MachineAddress("127.0.0.1", "203.0.113.9", (1, 9)))
    publish_address(other, MachineAddress("::1"))
    assert read_machine_address(first) == MachineAddress("127.0.0.1", "203.0.113.9", (1, 9))
    assert read_machine_address(other).reached_at == "::1"
