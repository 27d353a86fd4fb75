"""Machines with networks of their own: network namespaces, joined by virtual links to the first one.

No root is needed where the system allows user namespaces.
"""

import shutil
import subprocess
import sys
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
HOLD = ("sh", "-c", "echo up; exec sleep 3600")


class NoNetworks(RuntimeError):
    """This machine allows no network namespaces, or lacks the program ``ip``."""


class Networks:
    """A hub, with the address 10.77.1.1, and other machines with the addresses 10.77.N.2.

    Args:
        machines: the number of machines beside the hub.
    """

    def __init__(self, machines: int) -> None:
        self._holders: list[subprocess.Popen[bytes]] = []
        if shutil.which("ip") is None:
            raise NoNetworks("the program `ip` is not installed (package iproute2)")
        try:
            self._hold(["unshare", "--map-root-user", "--net", *HOLD])
            self._run(0, "ip", "link", "set", "lo", "up")
            self._run(0, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
            for number in range(1, machines + 1):
                self._add_machine(number)
        except BaseException:
            self.close()
            raise

    def _add_machine(self, number: int) -> None:
        self._hold(self.wrap_command(0, ["unshare", "--net", *HOLD]))
        pid, link = str(self._find_sleeper(number)), f"to{number}"
        self._run(0, "ip", "link", "add", link, "type", "veth", "peer", "name", "wire", "netns", pid)
        self._run(0, "ip", "address", "add", f"10.77.{number}.1/24", "dev", link)
        self._run(0, "ip", "link", "set", link, "up")
        for words in (
            ("link", "set", "lo", "up"),
            ("address", "add", f"10.77.{number}.2/24", "dev", "wire"),
            ("link", "set", "wire", "up"),
            ("route", "add", "default", "via", f"10.77.{number}.1"),
        ):
            self._run(number, "ip", *words)

    def _hold(self, command: list[str]) -> None:
        holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._holders.append(holder)
        if holder.stdout is None or holder.stdout.readline() != b"up\n":
            raise NoNetworks("this system allows no network namespaces to users")

    def _find_sleeper(self, machine: int) -> int:
        """Return the process in the namespaces of a machine; nsenter and unshare become it."""
        return self._holders[machine].pid

    def _run(self, machine: int, *command: str) -> None:
        subprocess.run(self.wrap_command(machine, list(command)), check=True, capture_output=True)

    def wrap_command(self, machine: int, command: list[str]) -> list[str]:
        """Return the command line that runs a command on a machine; 0 is the hub."""
        target = f"--target={self._find_sleeper(machine)}"
        return ["nsenter", target, "--user", "--preserve-credentials", "--net", *command]

    def publish(self, machine: int, address: str, ports: tuple[int, int]) -> None:
        """Give the hub an address at which ports of a machine are reached, and refuse them at its own."""
        self._run(0, "ip", "address", "add", f"{address}/32", "dev", "lo")
        inside = f"10.77.{machine}.2"
        only_forwarded = ("from", address, "to", inside, "lookup", "main", "pref", "1")
        self._run(0, "ip", "rule", "add", *only_forwarded)
        range_ = "-".join(map(str, ports))
        direct = ("to", inside, "ipproto", "tcp", "dport", range_, "prohibit", "pref", "2")
        self._run(0, "ip", "rule", "add", *direct)
        command = [sys.executable, "-c", FORWARDER, address, inside, *map(str, ports)]
        self._hold(self.wrap_command(0, command))

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
