"""Where agents find the controller."""

import os
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from elastane.common.addresses import find_default_address
from elastane.common.confined_files import ConfinedDirectory
from elastane.common.untrusted_data import Malformed

ANY_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104 - compared, not listened at
LOG_END_BYTES = 8192
"""How much of the end of a log is searched for the cause of a failure."""


class Site(msgspec.Struct, frozen=True):
    """Where agents find the controller.

    Args:
        home: its directory, which all machines share.
        url: its address.
        certificate: in PEM, if agents trust it only because their tickets have it; otherwise empty.
        isolates: jobs run as system users of their teams. Engines cannot do that: all agents would run as
            root, like the controller.
    """

    home: Path
    url: str
    certificate: str = ""
    isolates: bool = False


def locate_agent_log(home: Path, id_: str) -> Path:
    """Return the file for the output of an agent."""
    return home / "agents" / f"{id_}.log"


def read_log_end(home: Path, id_: str) -> str:
    """Return the end of the output of an agent; empty: it has written none, or on another machine."""
    try:
        with ConfinedDirectory(home).open(locate_agent_log(home, id_), in_part=True) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_END_BYTES))
            return file.read(LOG_END_BYTES).decode(errors="replace")
    except (OSError, Malformed):
        return ""


def find_site(home: Path, url: str, certificate: str, *, isolates: bool) -> Site:
    """Return where agents find a controller that listens at a URL, with this certificate chain if it has one.

    In place of any address, agents get the one that leads to other machines.

    Raises:
        BadInput: it listens at any address, and this machine has no route to others.
    """
    parts = urlsplit(url)
    if parts.hostname in ANY_ADDRESSES:
        host = find_default_address()
        url = f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{parts.port}"
    trusted = _read_self_signed(certificate) if certificate else ""
    return Site(home.absolute(), url, trusted, isolates)


def _read_self_signed(path: str) -> str:
    """Return a certificate that has signed itself, which no machine trusts by itself; empty: it has not."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import Encoding
    except ModuleNotFoundError:
        # Without it no machine can join a run either.
        return ""
    try:
        (first, *others) = x509.load_pem_x509_certificates(Path(path).read_bytes())
    except ValueError:
        # OpenSSL has accepted it, so agents may trust it by the authorities of their machines.
        return ""
    # The file may hold the key too, which must not be in any ticket.
    is_own = not others and first.issuer == first.subject
    return first.public_bytes(Encoding.PEM).decode() if is_own else ""
