"""The addresses of this machine: which one other machines of a run reach."""

import socket
from ipaddress import ip_address

from elastane.api.errors import BadInput

LOOPBACK = "127.0.0.1"


def find_family(host: str) -> socket.AddressFamily:
    """Return the family of a numeric address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def find_own_address(host: str, port: int) -> str:
    """Return the address of this machine from which it reaches another address; no packet is sent.

    Raises:
        OSError: there is no route to the address.
    """
    with socket.socket(find_family(host), socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


def check_own_address(option: str, address: str) -> str:
    """Return a numeric address of this machine, as typed.

    Raises:
        BadInput: it is not numeric, names every interface, or this machine does not have it.
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        raise BadInput(
            f"{option} {address} is not an address",
            means="other machines connect to a number such as 10.0.0.5 or fd00::5",
            do=f"{option} ADDRESS, with an address that `ip address` shows",
        ) from None
    if parsed.is_unspecified:
        raise BadInput(
            f"{option} {address} names every interface",
            means="other machines need the one address at which they reach this one",
            do=f"{option} ADDRESS, with an address that `ip address` shows",
        )
    try:
        with socket.socket(find_family(address)) as probe:
            probe.bind((address, 0))
    except OSError as error:
        raise BadInput(
            f"{option} {address}: {error.strerror}",
            means="this machine does not have the address",
            do=f"{option} ADDRESS, with an address that `ip address` shows",
        ) from None
    return address
