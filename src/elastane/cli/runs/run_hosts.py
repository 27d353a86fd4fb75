"""The options of ``elastane run`` about other machines."""

import shlex
import socket

from elastane.api.addresses import LOOPBACK, check_own_address, find_own_address
from elastane.api.errors import BadInput
from elastane.api.hosts import RunHost, list_own_names, parse_run_hosts
from elastane.cli.runs.run_options import RunOptions

SSH = ("ssh", "-o", "BatchMode=yes")
"""Without questions: nobody could answer them for several machines."""
ANY_PORT = 22


def read_hosts(options: RunOptions) -> tuple[RunHost, ...]:
    """Return the machines of ``--hosts``; none without it.

    Raises:
        BadInput: the option is not valid, or another one is missing.
    """
    if options.hosts is not None:
        return parse_run_hosts(options.hosts)
    if options.ssh is not None and options.resume is None:
        raise BadInput("--ssh needs --hosts", do="name the machines: --hosts a:8,b:8")
    return ()


def read_ssh(options: RunOptions) -> tuple[str, ...]:
    """Return the words of the command that reaches other machines; none without ``--hosts``.

    Raises:
        BadInput: the words cannot be told apart.
    """
    if options.ssh is None:
        return SSH if options.hosts is not None else ()
    try:
        words = tuple(shlex.split(options.ssh))
    except ValueError as error:
        raise BadInput(f"--ssh {options.ssh!r}: {error}", do="quote its words as for a shell") from None
    if not words:
        raise BadInput("--ssh is empty", do="write for example --ssh 'ssh -p 2222'")
    return words


def choose_address(typed: str | None, hosts: tuple[RunHost, ...]) -> str:
    """Return the address at which other machines reach this one; empty: none takes part.

    Args:
        typed: with ``--listen``; None: not typed.
        hosts: of ``--hosts``.

    Raises:
        BadInput: this machine does not have the address, or does not reach the first of the hosts.
    """
    if typed is not None:
        return check_own_address("--listen", typed)
    names = list_own_names()
    other = next((host for host in hosts if host.host not in names), None)
    if other is None:
        return LOOPBACK if hosts else ""
    try:
        found = socket.getaddrinfo(other.host, ANY_PORT, type=socket.SOCK_STREAM)
        return find_own_address(str(found[0][4][0]), ANY_PORT)
    except OSError as error:
        raise BadInput(
            f"--hosts: this machine finds no address for {other.host}: {error.strerror}",
            means="the other machines connect to an address of this one",
            do="check the name, or name the address to use: --listen ADDRESS",
        ) from error
