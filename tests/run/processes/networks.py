"""Machines with networks of their own: network namespaces, joined by virtual links to the first one.

Each machine has a user namespace too, so no worker can read the memory of another machine: they use TCP, as
between machines. No root is needed where the system allows user namespaces.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from types import TracebackType
from typing import Self

FORWARDER = """
import asyncio, contextlib, sys

async def copy(reader, writer):
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()

async def serve(port):
    async def forward(reader, writer):
        try:
            there = await asyncio.open_connection(sys.argv[2], port, local_addr=(sys.argv[1], 0))
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))
    await asyncio.start_server(forward, sys.argv[1], port)

async def main():
    for port in range(int(sys.argv[3]), int(sys.argv[4]) + 1):
        await serve(port)
    print("up", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
"""Publishes ports of a machine at an address of the hub, as container engines do."""
SLOW_LINK = """
import ctypes, fcntl, os, queue, struct, sys, threading, time

delay_s = float(sys.argv[3])

def open_end(name):
    end = os.open("/dev/net/tun", os.O_RDWR)
    # TUNSETIFF, with IFF_TUN and IFF_NO_PI
    fcntl.ioctl(end, 0x400454CA, struct.pack("16sH22x", name.encode(), 0x1001))
    return end

def deliver(end, packets):
    while True:
        due_s, packet = packets.get()
        time.sleep(max(0.0, due_s - time.monotonic()))
        try:
            os.write(end, packet)
        except OSError:
            pass  # the link is cut

def carry(begin, end):
    packets = queue.SimpleQueue()
    threading.Thread(target=deliver, args=(end, packets)).start()
    while True:
        packet = os.read(begin, 1 << 16)
        packets.put((time.monotonic() + delay_s, packet))

here = open_end(sys.argv[1])
if ctypes.CDLL(None).setns(os.open(f"/proc/{sys.argv[2]}/ns/net", os.O_RDONLY), 0):
    sys.exit("cannot enter the other network")
there = open_end("wire")
print("up", flush=True)
threading.Thread(target=carry, args=(there, here)).start()
carry(here, there)
"""
"""A link whose packets arrive late; not every kernel has the queueing discipline ``netem``."""
HOLD = ("sh", "-c", "echo up; exec sleep 3600")
HIDDEN = ("unshare", "--map-root-user")
"""Begins a command: processes of other machines cannot read the memory of this one."""
PORTS = tuple[int, int]
"""The first and the last port of a range."""


class NoNetworks(RuntimeError):
    """This machine allows no network namespaces, or lacks the program ``ip``."""


class Networks:
    """A hub, with the address 10.77.1.1, and other machines with the addresses 10.77.N.2.

    Args:
        machines: the number of machines beside the hub.
        delay_s: how long a packet takes between a machine and the hub.
        ipv6: the addresses are fd77::1:1 and fd77::N:2. The rules of `block` and `publish` are for IPv4 only.
    """

    def __init__(self, machines: int, delay_s: float = 0.0, *, ipv6: bool = False) -> None:
        self._holders: list[subprocess.Popen[bytes]] = []
        self._sleepers: list[int] = []
        """The process in the namespaces of each machine, the hub's first; nsenter and unshare become it."""
        self._delay_s = delay_s
        self._address = "fd77::{}:{}" if ipv6 else "10.77.{}.{}"
        # Without `nodad` an IPv6 address is not usable for its first second.
        self._range = ("/112", "nodad") if ipv6 else ("/24",)
        if shutil.which("ip") is None:
            raise NoNetworks("the program `ip` is not installed (package iproute2)")
        try:
            self._sleepers.append(self._hold([*HIDDEN, "--net", *HOLD]))
            self._run(0, "ip", "link", "set", "lo", "up")
            # Rules come before the delivery to the hub itself, so that they can block that too.
            self._run(0, "ip", "rule", "add", "lookup", "local", "pref", "100")
            self._run(0, "ip", "rule", "del", "pref", "0")
            forwarding = "ipv6/conf/all/forwarding" if ipv6 else "ipv4/ip_forward"
            self._run(0, "sh", "-c", f"echo 1 > /proc/sys/net/{forwarding}")
            for number in range(1, machines + 1):
                self._add_machine(number)
        except BaseException:
            self.close()
            raise

    def _add_machine(self, number: int) -> None:
        self._sleepers.append(self._hold(self._enter(0, [*HIDDEN, "--net", *HOLD])))
        pid, link = str(self._sleepers[number]), f"to{number}"
        if self._delay_s:
            self._hold(
                self._enter(0, [sys.executable, "-c", SLOW_LINK, link, pid, str(self._delay_s)]),
                "this system allows users no TUN devices, which links with a delay need",
            )
        else:
            self._run(0, "ip", "link", "add", link, "type", "veth", "peer", "name", "wire", "netns", pid)
        gateway, own = (self._address.format(number, end) for end in (1, 2))
        length, *flags = self._range
        self._run(0, "ip", "address", "add", gateway + length, "dev", link, *flags)
        self._run(0, "ip", "link", "set", link, "up")
        for words in (
            ("link", "set", "lo", "up"),
            ("address", "add", own + length, "dev", "wire", *flags),
            ("link", "set", "wire", "up"),
            ("route", "add", "default", "via", gateway),
        ):
            self._run(number, "ip", *words)

    def _hold(
        self, command: list[str], why: str = "this system allows no network namespaces to users"
    ) -> int:
        """Keep a command running, and return its process id.

        Raises:
            NoNetworks: it does not say that it is up, for this reason.
        """
        holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._holders.append(holder)
        if holder.stdout is None or holder.stdout.readline() != b"up\n":
            raise NoNetworks(why)
        return holder.pid

    def _run(self, machine: int, *command: str) -> None:
        subprocess.run(self._enter(machine, list(command)), check=True, capture_output=True)

    def _enter(self, machine: int, command: list[str]) -> list[str]:
        target = f"--target={self._sleepers[machine]}"
        return ["nsenter", target, "--user", "--preserve-credentials", "--net", *command]

    def wrap_command(self, machine: int, command: list[str]) -> list[str]:
        """Return the command line that runs a command on a machine; 0 is the hub. It keeps its process id."""
        # The owner of the hub's user namespace may look into those of the machines, which lie within it.
        return self._enter(machine, command if machine else [*HIDDEN, *command])

    def list_processes(self, machine: int) -> set[int]:
        """Return all processes on a machine, but not those that hold its network."""
        network = self._find_network(self._sleepers[machine])
        holders = {holder.pid for holder in self._holders}
        found = {int(entry.name) for entry in Path("/proc").glob("[0-9]*")} - holders
        return {pid for pid in found if self._find_network(pid) == network}

    def _find_network(self, pid: int) -> Path | None:
        # Processes come and go, and some belong to other users.
        with suppress(OSError):
            return Path(f"/proc/{pid}/ns/net").readlink()
        return None

    def signal(self, machine: int, number: signal.Signals) -> None:
        """Send a signal to every process on a machine, also to those that start meanwhile."""
        reached: set[int] = set()
        while new := self.list_processes(machine) - reached:
            for pid in new:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            reached |= new

    def part(self, some: Sequence[int], others: Sequence[int]) -> None:
        """Let no packet pass between two groups of machines; the hub reaches both."""
        for one, other in product(some, others):
            self.block(one, other)
            self.block(other, one)

    def unite(self, some: Sequence[int], others: Sequence[int]) -> None:
        """Undo a `part` with the same arguments."""
        for one, other in product(some, others):
            self.unblock(one, other)
            self.unblock(other, one)

    def block(
        self, sender: int, receiver: int, ports: PORTS | None = None, *, from_ports: PORTS | None = None
    ) -> None:
        """Let packets from one machine to another one vanish; packets the other way arrive.

        Args:
            sender: the machine that sends.
            receiver: the machine that receives.
            ports: only packets to these ports of the receiver; None: all.
            from_ports: only packets from these ports of the sender; None: all.
        """
        for rule in _list_blocking_rules(sender, receiver, ports, from_ports):
            self._run(0, "ip", "rule", "add", *rule)

    def unblock(
        self, sender: int, receiver: int, ports: PORTS | None = None, *, from_ports: PORTS | None = None
    ) -> None:
        """Undo a `block` with the same arguments."""
        for rule in _list_blocking_rules(sender, receiver, ports, from_ports):
            self._run(0, "ip", "rule", "del", *rule)

    def publish(self, machine: int, address: str, ports: PORTS) -> None:
        """Give the hub an address at which ports of a machine are reached, and refuse them at its own."""
        self._run(0, "ip", "address", "add", f"{address}/32", "dev", "lo")
        inside = f"10.77.{machine}.2"
        only_forwarded = ("from", address, "to", inside, "lookup", "main", "pref", "1")
        self._run(0, "ip", "rule", "add", *only_forwarded)
        direct = ("to", inside, "ipproto", "tcp", "dport", _format_ports(ports), "prohibit", "pref", "2")
        self._run(0, "ip", "rule", "add", *direct)
        command = [sys.executable, "-c", FORWARDER, address, inside, *map(str, ports)]
        self._hold(self._enter(0, command))

    def cut(self, machine: int) -> None:
        """Cut the link of a machine: packets vanish, and no connection closes."""
        self._run(0, "ip", "link", "set", f"to{machine}", "down")

    def heal(self, machine: int) -> None:
        self._run(0, "ip", "link", "set", f"to{machine}", "up")

    def close(self) -> None:
        for holder in reversed(self._holders):
            holder.kill()
            holder.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _list_blocking_rules(
    sender: int, receiver: int, ports: PORTS | None, from_ports: PORTS | None
) -> list[tuple[str, ...]]:
    """Return the words of rules of the hub, through which all packets pass."""
    begin = ("from", f"10.77.{sender}.2") if sender else ("iif", "lo")
    addresses = [f"10.77.{receiver}.2"] if receiver else sorted({"10.77.1.1", f"10.77.{sender}.1"})
    only = ("ipproto", "tcp") if ports or from_ports else ()
    for name, some in (("dport", ports), ("sport", from_ports)):
        only += (name, _format_ports(some)) if some else ()
    return [(*begin, "to", address, *only, "blackhole", "pref", "3") for address in addresses]


def _format_ports(ports: PORTS) -> str:
    return "-".join(map(str, ports))
