"""Check of addresses that a token is sent to."""

import ipaddress
from urllib.parse import urlsplit

from elastane.api.errors import BadInput


def check_url(url: str) -> None:
    """Check that a token may be sent to an address: over HTTPS, or to this machine.

    Raises:
        BadInput: the text is not an address, or the connection would not be encrypted.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(f"{url} is not the address of a controller", do="write https://HOST:PORT")
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise BadInput(
            f"{url} is not encrypted",
            means="your token could be read on the network",
            do="use https://, or a tunnel that ends at 127.0.0.1",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
