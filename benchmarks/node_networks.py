"""Two nodes on this machine: network namespaces, joined by one virtual link.

Each node has a user namespace too, so no worker can read the memory of the other node: they use TCP, as
between machines. No root is needed where the system allows user namespaces.
"""

import math
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias

ADDRESSES = ("10.77.1.1", "10.77.1.2")
LINK = "wire"
"""The name of the link's interface in both nodes."""
HIDDEN = ("unshare", "--map-root-user")
"""Begins a command: processes of other nodes cannot read the memory of this one."""
INSIDE = "ELASTANE_BENCHMARK_INSIDE_NODE"

RATES = {"kbit": 125.0, "mbit": 125e3, "gbit": 125e6}
"""The bytes per second of the units of a rate."""

End: TypeAlias = Literal["killed", "stopped", "cut off"]
"""What happens to a node: all its processes are killed, or stopped as without power, or its link is cut."""


class NoNodeNetworks(RuntimeError):
    """This machine does not allow what the nodes need."""


def enter_first_node() -> None:
    """Start this program again in the network namespace of the first node, unless it is there.

    It then reaches the coordinators of both nodes.
    """
    if INSIDE not in os.environ:
        command = ["unshare", "--map-root-user", "--net", sys.executable, *sys.orig_argv[1:]]
        os.execvpe(command[0], command, {**os.environ, INSIDE: "1"})  # noqa: S606


class NodeNetworks:
    """A second node beside this one, which `enter_first_node` made, as long as the block lasts.

    All processes of both nodes end with it, but not those that this program starts outside of the nodes.

    Args:
        rate: of the link in each direction, as `tc` spells it, for example ``1gbit``; empty: not limited.

    Attributes:
        bytes_per_s: the rate; infinite if it is not limited.

    Raises:
        NoNodeNetworks: this machine allows no network namespace or no limited rate, or lacks ``ip`` or
            ``tc`` (package iproute2).
    """

    def __init__(self, rate: str = "") -> None:
        self.bytes_per_s = float(rate[:-4]) * RATES[rate[-4:]] if rate else math.inf
        self._namespaces: tuple[Path, ...] = ()
        # The end of this program closes its input, and so ends it.
        self._second = subprocess.Popen(
            [*HIDDEN, "--net", "sh", "-c", "echo up; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a signal from the terminal leaves it until the block has ended
        )
        try:
            self._wait_for_second()
            namespaces = (Path("/proc/self/ns/net"), Path(f"/proc/{self._second.pid}/ns/net"))
            self._namespaces = tuple(namespace.readlink() for namespace in namespaces)
            pid = str(self._second.pid)
            self._run(0, "ip", "link", "add", LINK, "type", "veth", "peer", "name", LINK, "netns", pid)
            for node, address in enumerate(ADDRESSES):
                self._run(node, "ip", "link", "set", "lo", "up")
                self._run(node, "ip", "address", "add", f"{address}/24", "dev", LINK)
                self._run(node, "ip", "link", "set", LINK, "up")
                if rate:
                    words = ("rate", rate, "burst", "256kb", "latency", "50ms")
                    self._run(node, "tc", "qdisc", "add", "dev", LINK, "root", "tbf", *words)
        except BaseException:
            self.close()
            raise

    def _wait_for_second(self) -> None:
        if self._second.stdout is None or self._second.stdout.readline() != b"up\n":
            raise NoNodeNetworks("this system allows no network namespaces to users")

    def _run(self, node: int, *command: str) -> None:
        target = ("nsenter", f"--target={self._second.pid}", "--net")
        words = [*target, *command] if node else command
        try:
            subprocess.run(words, check=True, capture_output=True, text=True)
        except subprocess.CalledProcessError as error:
            raise NoNodeNetworks(f"`{' '.join(command)}` failed: {error.stderr.strip()}") from error

    def wrap_command(self, node: int, command: list[str]) -> list[str]:
        """Return the command line that runs a command on a node, 0 or 1; it keeps its process id."""
        target = f"--target={self._second.pid}"
        second = ["nsenter", target, "--user", "--preserve-credentials", "--net"]
        return [*(second if node else HIDDEN), *command]

    def count_bytes(self) -> tuple[int, int]:
        """Return how many bytes have left the first node over the link, and how many have arrived."""
        lines = Path("/proc/self/net/dev").read_text().splitlines()
        numbers = next(line for line in lines if line.strip().startswith(f"{LINK}:")).split(":")[1].split()
        return int(numbers[8]), int(numbers[0])

    def count_left_bytes(self) -> int:
        """Return how many bytes have left the first node over the link."""
        return self.count_bytes()[0]

    def end(self, node: int, how: End) -> None:
        """End a node; when it is stopped or cut off, no connection closes."""
        match how:
            case "killed":
                self._send(node, signal.SIGKILL)
            case "stopped":
                self._send(node, signal.SIGSTOP)
            case "cut off":
                self._run(node, "ip", "link", "set", LINK, "down")

    def clear(self, node: int) -> None:
        """Kill all processes of a node, and heal its link."""
        self._send(node, signal.SIGKILL)
        self._run(node, "ip", "link", "set", LINK, "up")

    def _send(self, node: int, number: signal.Signals) -> None:
        """Send a signal to every process of a node, those that start meanwhile too."""
        reached: set[int] = set()
        while new := self._list_processes(node) - reached:
            for pid in new:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            reached |= new

    def _list_processes(self, node: int) -> set[int]:
        net, own = self._namespaces[node], Path("/proc/self/ns/user").readlink()
        found: set[int] = set()
        for process in Path("/proc").glob("[0-9]*"):
            # Processes come and go, and some belong to other users.
            with suppress(OSError):
                # This program and what it starts outside the nodes share the network of the first one.
                if (process / "ns/net").readlink() == net and (process / "ns/user").readlink() != own:
                    found.add(int(process.name))
        return found - {self._second.pid}

    def close(self) -> None:
        for node in range(len(self._namespaces)):
            self._send(node, signal.SIGKILL)
        self._second.kill()
        self._second.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
