"""The options about the site, the addresses and the ports of ``elastane run`` and ``elastane join``."""

import re
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, TypeAlias

from typer.core import TyperCommand

from elastane.cli.options import WORKERS, option, spell_with_hyphens
from elastane.common.addresses import (
    check_address,
    check_own_address,
    find_default_address,
    find_interface_address,
    is_address,
    list_interfaces,
)
from elastane.common.errors import BadInput
from elastane.run.nouns.machine_address import MachineAddress, count_needed_ports

DEFAULT_ADDRESS = "default"
"""The value of ``--listen`` without an address."""
_PORTS = re.compile(r"(\d{1,5})-(\d{1,5})")

Advertise: TypeAlias = Annotated[
    str | None,
    option(
        "ADDRESS",
        "The address at which the other machines reach this one, if its addresses are translated.",
        panel=WORKERS,
    ),
]
Site: TypeAlias = Annotated[
    str | None,
    option(
        "SITE",
        "Site of this machine, such as eu-1: its workers alone read the data that run.rounds binds to it. "
        "Several, such as eu-1,us-1: it may read the data of each.",
        panel=WORKERS,
    ),
]
Ports: TypeAlias = Annotated[
    str | None,
    option(
        "A-B",
        "Listen only on TCP ports from A to B: 2 for this machine, and 2 for each of its workers.",
        panel=WORKERS,
    ),
]


class CommandWithListen(TyperCommand):
    """A command with ``--listen``, which may stand without an address before any other word."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the command line, with `DEFAULT_ADDRESS` where ``--listen`` has no address."""
        options = [option for option in self.get_params(ctx) if option.param_type_name == "option"]
        valued = {name for option in options if not getattr(option, "is_flag", False) for name in option.opts}
        script_last = not ctx.allow_interspersed_args
        return super().parse_args(ctx, complete_listen(args, valued, script_last=script_last))


def complete_listen(words: Sequence[str], valued: AbstractSet[str], *, script_last: bool) -> list[str]:
    """Return the words of a command line with `DEFAULT_ADDRESS` after a ``--listen`` without an address.

    ``valued`` are the options that have a value, spelt with hyphens. With ``script_last`` all words from the
    first argument on belong to the script.
    """
    completed = list(words)
    place = 0
    while place < len(completed) and completed[place] != "--":
        if script_last and not completed[place].startswith("-"):
            break
        if completed[place] == "--listen" and not _names_address("".join(completed[place + 1 : place + 2])):
            completed.insert(place + 1, DEFAULT_ADDRESS)
        place += 2 if spell_with_hyphens(completed[place]) in valued else 1
    return completed


def _names_address(word: str) -> bool:
    return is_address(word) or word in list_interfaces()


def build_machine_address(
    listen: str | None,
    advertise: str | None,
    ports: str | None,
    find_address: Callable[[], str] = find_default_address,
) -> MachineAddress:
    """Return where this machine listens, from the values of its options.

    ``find_address`` returns the address if ``--listen`` names neither one nor a network interface.
    """
    if listen in {None, DEFAULT_ADDRESS}:
        host = find_address()
    elif is_address(listen):
        host = check_own_address(listen, may_be_any=advertise is not None)
    else:
        host = find_interface_address(listen)
    advertised = "" if advertise is None else str(check_address("--advertise", advertise))
    return MachineAddress(host, advertised, read_ports(ports))


def read_ports(text: str | None) -> tuple[int, int] | None:
    """Return the first and the last port of a range; None without one."""
    if text is None:
        return None
    match = _PORTS.fullmatch(text)
    first, last = (0, 0) if match is None else (int(match[1]), int(match[2]))
    if not 0 < first <= last < 2**16:
        raise BadInput(
            f"--ports {text} is not a range of TCP ports", do="write for example --ports 29500-29599"
        )
    return first, last


def check_ports(address: MachineAddress, slots: int) -> None:
    """Check that the range of ports of this machine is large enough for its slots, the most workers on it."""
    needed = count_needed_ports(slots)
    if address.ports is not None and address.ports[1] - address.ports[0] + 1 < needed:
        first, last = address.ports
        raise BadInput(
            f"--ports {first}-{last} has {last - first + 1} ports, too few for {slots} workers",
            means=f"this machine needs {needed}: 2 for itself, and 2 for each worker and its successor",
            do=f"--ports {first}-{first + needed - 1}, or fewer workers on this machine",
        )
