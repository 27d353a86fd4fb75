"""The controller that the commands of a user connect to, and the user's token.

``$ELASTANE_HOME/cluster.json`` has the address and the token; ``$ELASTANE_URL`` and ``$ELASTANE_TOKEN`` win.
``controller.json`` beside it has the process that ``elastane up`` started last.
"""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from elastane.api.atomic_file import replace_file
from elastane.api.errors import BadInput
from elastane.api.run_as import RunAs
from elastane.client.addresses import check_url
from elastane.client.runs_home import find_home, make_home

if TYPE_CHECKING:
    from elastane.client.cluster import Cluster

T = TypeVar("T")


class Context(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Address of a controller, and the token to use there.

    Args:
        url: of the controller.
        token: ``ela_...``.
        certificate: file with the certificate to trust; empty: the certificates that the machine trusts.
        team: for which this user submits jobs; empty: unknown.
    """

    url: str
    token: str
    certificate: str = ""
    team: str = ""


class StartedController(msgspec.Struct, frozen=True, kw_only=True):
    """A controller that was started on this machine.

    Args:
        url: of the controller.
        pid: of its process.
        started: start time of that process, in clock ticks since the boot of the machine.
    """

    url: str
    pid: int
    started: int


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


def connect(to: Context | None = None, *, timeout_s: float = 30.0) -> "Cluster":
    """Return a connection to a controller, by default to the one of `find_context`.

    Args:
        to: the controller.
        timeout_s: see `elastane.client.cluster.Cluster`.

    Raises:
        BadInput: no controller is configured, its address is not encrypted, its certificate is missing, or
            httpx is not installed.
    """
    to = find_context() if to is None else to
    check_url(to.url)
    from elastane.client.cluster import Cluster

    if to.certificate and not Path(to.certificate).is_file():
        raise BadInput(
            f"there is no certificate {to.certificate}",
            means="without it the controller cannot be authenticated",
            do="restore that file, or: elastane login URL --ca FILE",
        )
    return Cluster(to.url, to.token, verify=to.certificate or True, timeout_s=timeout_s)


def read_context() -> Context | None:
    """Return the saved context, without the environment; None if none is saved."""
    return _read(find_home() / "cluster.json", Context)


def save_context(found: Context) -> None:
    """Save the controller to connect to from now on."""
    _write(find_home() / "cluster.json", found)


def save_store_context(store: str, found: Context) -> None:
    """Save the context of the controller of a store, for when it starts here again after another one."""
    _write(_get_store_path(store), found)


def read_store_context(store: str) -> Context | None:
    return _read(_get_store_path(store), Context)


def _get_store_path(store: str) -> Path:
    return find_home() / f"cluster-{hashlib.sha256(store.encode()).hexdigest()[:16]}.json"


def read_running() -> StartedController | None:
    """Return the controller that was started here last; None if none was."""
    return _read(find_home() / "controller.json", StartedController)


def save_running(found: StartedController) -> None:
    _write(find_home() / "controller.json", found)


def save_run_as(run_as: RunAs) -> None:
    """Save the system users of jobs for the next controller that starts here."""
    _write(find_home() / "run-as.json", run_as)


def read_run_as() -> RunAs:
    """Return the system users that jobs ran as when a controller started here last.

    Raises:
        BadInput: the file is damaged; jobs must not run as root because of that.
    """
    try:
        return _read(find_home() / "run-as.json", RunAs) or RunAs()
    except BadInput as error:
        raise BadInput(
            error.what,
            means="the system users of the jobs are unknown; nothing was started",
            do="name them again: elastane up --run-as TEAM=USER",
        ) from error


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is damaged ({error})", do=f"remove {path}") from error


def _write(path: Path, value: msgspec.Struct) -> None:
    """Write a file that only its owner can read, because it may hold a token."""
    make_home()
    content = msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
    replace_file(path, content, durable=False, mode=0o600)
