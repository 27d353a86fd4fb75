"""The machines of a run that ``--hosts`` names: ``a:8,user@b:8,[fd00::7]:4``."""

import re
import socket
from collections.abc import Collection
from typing import Annotated

import msgspec

from elastane.common.addresses import ANY_PORT, is_own_address
from elastane.common.errors import BadInput
from elastane.run.nouns.heartbeat_file import SLOTS
from elastane.run.nouns.membership import FIRST_NODE_WORD, MOST_NODES, NODE_NAME, NodeName

MOST_SLOTS = SLOTS
"""The most workers on one machine: its agent watches each one through a slot of the heartbeat file."""
_HOST = re.compile(
    # ssh would take a word that begins with a dash for an option.
    r"(?P<user>[A-Za-z0-9._][A-Za-z0-9._-]*@)?"
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)(?::(?P<slots>\d{1,9}))?"
)
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class RunHost(msgspec.Struct, frozen=True):
    """A machine that takes part in a run from its beginning.

    Args:
        address: as ``ssh`` takes it, with or without a user.
        slots: the most workers on it; None: its GPUs or, without any, its CPUs.
    """

    address: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^([A-Za-z0-9._][A-Za-z0-9._-]*@)?[0-9A-Za-z.:_][0-9A-Za-z.:_-]*\Z", max_length=512
        ),
    ]
    slots: Annotated[int, msgspec.Meta(ge=1, le=MOST_SLOTS)] | None = None

    @property
    def host(self) -> str:
        """The name or the numeric address of the machine."""
        return self.address.rpartition("@")[2]

    @property
    def node(self) -> NodeName:
        """The name of the machine in the run."""
        return derive_node_name(self.host)


def derive_node_name(host: str) -> NodeName:
    """Return the name in a run of the machine with this host name or address.

    `NODE_NAME` may still not match it, for example because it is too long.
    """
    name = host.lower().replace("_", "-").replace(":", "-")
    # Commands take a number for a worker, and the word for the machine on which the run began.
    return f"host-{name}" if name.isdecimal() or name == FIRST_NODE_WORD else name


def list_own_names() -> frozenset[str]:
    """Return the names of this machine."""
    name = socket.gethostname()
    return LOOPBACK_NAMES | {name, name.partition(".")[0], socket.getfqdn()}


def find_own_host(hosts: Collection[RunHost]) -> RunHost | None:
    """Return the one of some hosts that is this machine, by name or by address; None: none is."""
    names = list_own_names()
    named = next((host for host in hosts if host.host in names), None)
    # Resolving names may take long.
    return named or next((host for host in hosts if _leads_here(host.host)), None)


def _leads_here(host: str) -> bool:
    """Return whether a name or numeric address has an address of this machine."""
    try:
        found = socket.getaddrinfo(host, ANY_PORT, type=socket.SOCK_STREAM)
    # The configuration of ssh may know a name that this machine does not resolve.
    except OSError:
        return False
    return any(is_own_address(str(address[0])) for *_, address in found)


def parse_run_hosts(text: str) -> tuple[RunHost, ...]:
    """Return the machines that ``--hosts`` names.

    Raises:
        BadInput: a word is not a host, one is named twice, or there are too many.
    """
    hosts = tuple(_parse_host(word.strip()) for word in text.split(","))
    nodes = [host.node for host in hosts]
    twice = sorted({node for node in nodes if nodes.count(node) > 1})
    if twice:
        raise BadInput(
            f"--hosts names {', '.join(twice)} twice",
            means="one agent runs all workers of a machine",
            do="name each machine once, with all its slots: HOST:SLOTS",
        )
    if len(hosts) > MOST_NODES:
        raise BadInput(f"--hosts names {len(hosts)} machines, more than {MOST_NODES}")
    return hosts


def _parse_host(word: str) -> RunHost:
    match = _HOST.fullmatch(word)
    slots = None if match is None or match["slots"] is None else int(match["slots"])
    if match is None or (slots is not None and not 1 <= slots <= MOST_SLOTS):
        raise BadInput(
            f"--hosts: {word!r} is not HOST or HOST:SLOTS",
            do=f"write for example --hosts a:8,b:8, with 1 to {MOST_SLOTS} slots",
        )
    host = RunHost((match["user"] or "") + match["host"].strip("[]"), slots)
    if not re.fullmatch(NODE_NAME, host.node) or host.address.startswith("-"):
        raise BadInput(
            f"--hosts: {word!r} cannot name a machine of a run",
            means="logs and commands name the machine by it: at most 63 letters, digits, dots and dashes, "
            "with a letter or digit at both ends",
            do="write its host name, or an alias for its address in ~/.ssh/config (Host NAME, "
            "HostName ADDRESS)",
        )
    return host
