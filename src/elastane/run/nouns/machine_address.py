"""The address of a machine in a run: where it listens, and where others reach it."""

import errno
import socket
from pathlib import Path
from typing import Annotated

import msgspec

from elastane.common.addresses import LOOPBACK, find_family
from elastane.common.atomic_file import replace_file
from elastane.common.untrusted_data import Decoder
from elastane.run.nouns.membership import Host
from elastane.run.nouns.rundir import RunDir

BOOT_ID, NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/net")
LARGEST_ADDRESS_BYTES = 4096
OWN_PORTS = 2
"""The ports of a machine besides those of its workers: for its coordinators, and for its agent."""

ListeningPort = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class MachineAddress(msgspec.Struct, frozen=True):
    """Where the processes of one machine listen.

    Args:
        host: numeric address of this machine.
        advertised: numeric address at which others reach it, if a translation is between; empty: ``host``.
        ports: the first and the last TCP port that they may take, outside the same as here; None: any.
    """

    host: Host = LOOPBACK
    advertised: Host = ""
    ports: tuple[ListeningPort, ListeningPort] | None = None

    @property
    def reached_at(self) -> str:
        """The address for other machines."""
        return self.advertised or self.host

    def translate(self, host: str, port: int) -> str:
        """Return the host to connect to for an advertised one; for this machine itself the one it listens at.

        A translation of addresses often does not lead back to the machine that a packet comes from. Machines
        that share an advertised address differ in their ports.
        """
        own = self.ports is None or self.ports[0] <= port <= self.ports[1]
        return self.host if host == self.reached_at and own else host

    def listen(self, backlog: int) -> socket.socket:
        """Return a socket that listens on a free port.

        Raises:
            OSError: this machine does not have the address, or no port of the range is free.
        """
        first, last = self.ports or (0, 0)
        for port in range(first, last + 1):
            try:
                return socket.create_server((self.host, port), family=find_family(self.host), backlog=backlog)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
        raise OSError(errno.EADDRINUSE, f"no port from {first} to {last} is free at {self.host}")


LOOPBACK_ONLY = MachineAddress()
"""Any free port of this machine, for its own processes only."""


def find_network_id() -> str:
    """Return what identifies the network stack of this process: the boot of the kernel, and the namespace.

    Processes with the same one reach each other at the addresses at which they listen.
    """
    try:
        return f"{BOOT_ID.read_text().strip()}-{NAMESPACE.stat().st_ino}"
    except OSError:
        return ""


def count_needed_ports(slots: int) -> int:
    """Return how many ports a machine needs for some workers, and as many that start while others leave."""
    return OWN_PORTS + 2 * slots


_decode: Decoder[MachineAddress] = Decoder(MachineAddress, at_most_bytes=LARGEST_ADDRESS_BYTES)


def publish_address(run_dir: RunDir, address: MachineAddress) -> None:
    """Write the address of this machine for its coordinators and workers."""
    replace_file(run_dir.node_files.address, msgspec.json.encode(address), durable=False)


def read_machine_address(run_dir: RunDir) -> MachineAddress:
    """Return the address of this machine.

    Raises:
        Malformed: its agent has not written the file.
        OSError: it cannot be read.
    """
    return _decode(run_dir.files.read(run_dir.node_files.address, LARGEST_ADDRESS_BYTES))
