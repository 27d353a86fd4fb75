"""The options of ``elastane run`` about other machines."""

import shlex
import socket
from functools import partial

from elastane.cli.runs.address_options import build_machine_address
from elastane.cli.runs.run_options import RunOptions
from elastane.common.addresses import ANY_PORT, LOOPBACK, find_default_address, find_own_address
from elastane.common.errors import BadInput
from elastane.run.nouns.hosts import RunHost, find_own_host, parse_run_hosts
from elastane.run.nouns.machine_address import MachineAddress

SSH = ("ssh", "-o", "BatchMode=yes")
"""Without questions, which a user could not answer for several machines."""


def read_hosts(options: RunOptions) -> tuple[RunHost, ...]:
    """Return the machines of ``--hosts``; none without it."""
    if options.hosts is not None:
        return parse_run_hosts(options.hosts)
    if options.ssh is not None and options.resume is None:
        raise BadInput("--ssh needs --hosts", do="name the machines: --hosts a:8,b:8")
    return ()


def read_ssh(options: RunOptions) -> tuple[str, ...]:
    """Return the words of the command that reaches other machines; none without ``--hosts``."""
    if options.ssh is None:
        return SSH if options.hosts is not None else ()
    try:
        words = tuple(shlex.split(options.ssh))
    except ValueError as error:
        raise BadInput(f"--ssh {options.ssh!r}: {error}", do="quote its words as for a shell") from None
    if not words:
        raise BadInput("--ssh is empty", do="write for example --ssh 'ssh -p 2222'")
    return words


def choose_machine_address(options: RunOptions, hosts: tuple[RunHost, ...]) -> MachineAddress | None:
    """Return where this machine listens; None: no other one takes part."""
    if not hosts and options.listen is None:
        if options.advertise is not None or options.ports is not None:
            raise BadInput(
                "--advertise and --ports need --listen",
                means="without it nothing outside this machine reaches the run",
                do="--listen, or --listen ADDRESS",
            )
        return None
    find_address = partial(_find_address, hosts) if hosts else find_default_address
    return build_machine_address(options.listen, options.advertise, options.ports, find_address)


def _find_address(hosts: tuple[RunHost, ...]) -> str:
    """Return the address of this machine that reaches the first other one."""
    own = find_own_host(hosts)
    other = next((host for host in hosts if host != own), None)
    if other is None:
        return LOOPBACK
    try:
        found = socket.getaddrinfo(other.host, ANY_PORT, type=socket.SOCK_STREAM)
        return find_own_address(str(found[0][4][0]), ANY_PORT)
    except OSError as error:
        raise BadInput(
            f"--hosts: this machine finds no address for {other.host}: {error.strerror}",
            means="the other machines connect to an address of this one",
            do="check the name, or name the address to use: --listen ADDRESS",
        ) from error
