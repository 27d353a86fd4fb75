"""Addresses and files of services, as users type them."""

import os

from elastane.common.errors import BadInput

LAST_PORT = 65535


def parse_listen_address(listen: str) -> tuple[str, int]:
    """Return the host and the port of ``--listen``."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > LAST_PORT:
        raise BadInput(
            f"invalid --listen: {listen!r} is not HOST:PORT", do="write for example 127.0.0.1:7425"
        )
    return host.strip("[]"), int(port)


def make_absolute(path: str) -> str:
    """Return the absolute path of a file; empty if none was typed."""
    return os.path.abspath(path) if path else ""  # noqa: PTH100 - links stay as they are
