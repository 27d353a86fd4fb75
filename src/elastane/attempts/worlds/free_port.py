"""A port for the rendezvous of a world."""

import random
import socket
from pathlib import Path

FIRST = 20_000
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
USUAL_FIRST_EPHEMERAL = 32_768
TRIES = 200


def find_free_port(*, avoid: int = 0) -> int:
    """Return a port that is free now, below those that the kernel gives to outgoing connections.

    The process of rank 0 opens it a moment later. A connection of another program could take an ephemeral
    port meanwhile, as happens to launchers that bind port 0 to find one.

    Args:
        avoid: the port of the world before: the kernel may remember connections to it.

    Raises:
        OSError: no port is free.
    """
    last = _read_first_ephemeral() - 1
    chooser = random.SystemRandom()
    for _ in range(TRIES):
        port = chooser.randint(FIRST, last)
        if port != avoid and _is_free(port):
            return port
    raise OSError(f"no port from {FIRST} to {last} is free")


def _read_first_ephemeral() -> int:
    try:
        first = int(RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return USUAL_FIRST_EPHEMERAL
    return first if first > FIRST + TRIES else USUAL_FIRST_EPHEMERAL


def _is_free(port: int) -> bool:
    """Return whether a server on all addresses, such as torch's store, could listen there."""
    try:
        with socket.create_server(("", port)):
            return True
    except OSError:
        return False
