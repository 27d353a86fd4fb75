"""The controller that a user of this machine connects to, and the user's token.

``$ELASTANE_HOME/cluster.json`` has the address and the token; ``$ELASTANE_URL`` and ``$ELASTANE_TOKEN`` win.
"""

import hashlib
import os
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from elastane.common.connections.http_listener import is_loopback
from elastane.common.errors import BadInput
from elastane.common.home import find_home, read_home_file, write_home_file

SAVED = "cluster.json"


class Context(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Address of a controller, and the token to use there.

    Args:
        token: ``ela_...``.
        certificate: file with the certificate to trust; empty: the certificates that the machine trusts.
        team: for which this user submits jobs; empty: unknown.
    """

    url: str
    token: str
    certificate: str = ""
    team: str = ""


def find_context() -> Context:
    """Return the controller to connect to, from the environment and the saved context.

    The saved token is never returned for another address.

    Raises:
        BadInput: no controller is configured, or its token is missing.
    """
    saved = read_context()
    url, token = os.environ.get("ELASTANE_URL", ""), os.environ.get("ELASTANE_TOKEN", "")
    missing = [name for name, value in (("ELASTANE_URL", url), ("ELASTANE_TOKEN", token)) if not value]
    if saved is None and len(missing) == 1:
        raise BadInput(
            f"{missing[0]} is not set",
            means=f"an address and a token are needed, and there is no {find_home() / 'cluster.json'}",
            do=f"set {missing[0]} too, or: elastane login URL",
        )
    if saved is None and missing:
        raise BadInput(
            "no cluster is configured",
            means=f"there is no {find_home() / 'cluster.json'}; ELASTANE_URL and ELASTANE_TOKEN are not set",
            do="elastane up starts one on this machine; for another: elastane login URL",
        )
    if saved is not None and url and url.rstrip("/") != saved.url.rstrip("/"):
        if not token:
            raise BadInput(
                "ELASTANE_TOKEN is not set",
                means=f"ELASTANE_URL is {url}, but the saved token is only for {saved.url}",
                do=f"set ELASTANE_TOKEN too, or: elastane login {url}",
            )
        saved = None
    context = saved or Context(url=url, token=token)
    certificate = os.environ.get("ELASTANE_CA", context.certificate)
    team = context.team if token in ("", context.token) else ""
    return Context(url=url or context.url, token=token or context.token, certificate=certificate, team=team)


def find_context_of(url: str) -> Context:
    """Return the context of a certain controller.

    Raises:
        BadInput: no token for its address is configured here.
    """
    found = find_context()
    if found.url.rstrip("/") != url.rstrip("/"):
        raise BadInput(
            f"there is no token for {url}",
            means=f"the configured token is only for {found.url}",
            do=f"elastane login {url}; or set ELASTANE_URL and ELASTANE_TOKEN",
        )
    return found


def check_context(context: Context) -> None:
    """Check that a token may be sent to the address of a context, and that its certificate is there.

    Raises:
        BadInput: the text is not an address, the connection would not be encrypted, or the file with the
            certificate is missing.
    """
    check_url(context.url)
    if context.certificate and not Path(context.certificate).is_file():
        raise BadInput(
            f"there is no certificate {context.certificate}",
            means="without it the controller cannot be authenticated",
            do="restore that file, or: elastane login URL --ca FILE",
        )


def check_url(url: str) -> None:
    """Check that a token may be sent to an address: over HTTPS, or to this machine."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(f"{url} is not the address of a controller", do="write https://HOST:PORT")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise BadInput(
            f"{url} is not encrypted",
            means="your token could be read on the network",
            do="use https://, or a tunnel that ends at 127.0.0.1",
        )


def read_context() -> Context | None:
    """Return the saved context, without the environment; None if none is saved."""
    return read_home_file(SAVED, Context)


def save_context(found: Context) -> None:
    """Save the controller to connect to from now on."""
    write_home_file(SAVED, found)


def save_store_context(store: str, found: Context) -> None:
    """Save the context of the controller of a store, for when it starts here again after another one."""
    write_home_file(_get_store_file(store), found)


def read_store_context(store: str) -> Context | None:
    return read_home_file(_get_store_file(store), Context)


def _get_store_file(store: str) -> str:
    return f"cluster-{hashlib.sha256(store.encode()).hexdigest()[:16]}.json"
