"""The addresses of this machine: which one other machines of a run reach."""

import fcntl
import socket
import struct
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from elastane.common.errors import BadInput

LOOPBACK = "127.0.0.1"
ANY_PORT = 9
OUTSIDE = ("192.0.2.1", "2001:db8::1")
"""Addresses for documentation, which belong to no machine: RFC 5737 and RFC 3849."""
SIOCGIFADDR = 0x8915
"""Asks for the IPv4 address of an interface, see netdevice(7)."""
IPV6_ADDRESSES = Path("/proc/net/if_inet6")
GLOBAL_SCOPES = ("00", "10")
"""Scopes of IPv6 addresses in that file: global, and of this machine. Link-local addresses need a zone."""


def find_family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def find_own_address(host: str, port: int) -> str:
    """Return the address of this machine from which it reaches another address; no packet is sent.

    Raises:
        OSError: there is no route to the address.
    """
    with socket.socket(find_family(host), socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


def find_default_address() -> str:
    """Return the address of this machine from which it reaches the outside, by its default route.

    Raises:
        BadInput: it has no default route, neither with IPv4 nor with IPv6.
    """
    for outside in OUTSIDE:
        with suppress(OSError):
            return find_own_address(outside, ANY_PORT)
    raise BadInput(
        "this machine has no default route",
        means="so which of its addresses the other machines reach is not known",
        do="name it: --listen ADDRESS, or --listen eth1 for a network interface",
    )


def list_interfaces() -> list[str]:
    """Return the names of the network interfaces of this machine."""
    return [name for _, name in socket.if_nameindex()]


def find_interface_address(name: str) -> str:
    """Return the address of a network interface, an IPv4 address first.

    Raises:
        BadInput: there is no such interface, or it has no address of its own.
    """
    if name not in list_interfaces():
        raise BadInput(
            f"--listen {name}: this is neither an address nor a network interface of this machine",
            do=f"choose one of {', '.join(list_interfaces())}, or an address that `ip address` shows",
        )
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # struct ifreq: the name in 16 bytes, then a struct sockaddr_in with the address at 4.
        answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    for line in IPV6_ADDRESSES.read_text().splitlines() if IPV6_ADDRESSES.exists() else ():
        digits, _, _, scope, _, interface = line.split()
        if interface == name and scope in GLOBAL_SCOPES:
            return str(ip_address(bytes.fromhex(digits)))
    raise BadInput(
        f"the network interface {name} has no address that other machines reach",
        do="name another interface, or an address: --listen ADDRESS",
    )


def is_address(text: str) -> bool:
    """Return whether a text is a numeric address."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def is_own_address(address: str) -> bool:
    """Return whether this machine has a numeric address."""
    # Some systems allow binding to any address, so that this proves nothing: see ip_nonlocal_bind in ip(7).
    outside = next(other for other in OUTSIDE if find_family(other) == find_family(address))
    return _can_bind(address) and not _can_bind(outside)


def _can_bind(address: str) -> bool:
    with suppress(OSError), socket.socket(find_family(address)) as probe:
        probe.bind((address, 0))
        return True
    return False


def check_address(option: str, address: str) -> IPv4Address | IPv6Address:
    """Return a numeric address, as typed."""
    try:
        return ip_address(address)
    except ValueError:
        raise BadInput(
            f"{option} {address} is not an address",
            means="other machines connect to a number such as 10.0.0.5 or fd00::5",
            do=f"{option} ADDRESS, with an address that `ip address` shows",
        ) from None


def check_own_address(address: str, *, may_be_any: bool = False) -> str:
    """Return a numeric address of this machine, as typed with ``--listen``.

    Args:
        may_be_any: it may name every interface, because another address is advertised.

    Raises:
        BadInput: it is not numeric, names every interface, or this machine does not have it.
    """
    if check_address("--listen", address).is_unspecified and not may_be_any:
        raise BadInput(
            f"--listen {address} names every interface",
            means="other machines need the one address at which they reach this one",
            do="--listen ADDRESS, with an address that `ip address` shows; or also --advertise ADDRESS",
        )
    try:
        with socket.socket(find_family(address)) as probe:
            probe.bind((address, 0))
    except OSError as error:
        raise BadInput(
            f"--listen {address}: {error.strerror}",
            means="this machine does not have the address",
            do="--listen ADDRESS, with an address that `ip address` shows",
        ) from None
    return address
