"""Two nodes on this machine: network namespaces, joined by one virtual link.

Workers of different namespaces use TCP, as between machines. No root is needed where the system allows user
namespaces.
"""

import os
import subprocess
import sys
from types import TracebackType
from typing import Self

ADDRESSES = ("10.77.1.1", "10.77.1.2")
LINK = "wire"
"""The name of the link's interface in both nodes."""
INSIDE = "ELASTANE_BENCHMARK_INSIDE_NODE"


class NoNodeNetworks(RuntimeError):
    """This machine does not allow what the nodes need."""


def enter_first_node() -> None:
    """Start this program again in a network namespace of its own, unless it is there.

    It then reaches the coordinators of both nodes.
    """
    if INSIDE not in os.environ:
        command = ["unshare", "--map-root-user", "--net", sys.executable, *sys.orig_argv[1:]]
        os.execvpe(command[0], command, {**os.environ, INSIDE: "1"})


class NodeNetworks:
    """A second node beside this one, which `enter_first_node` made, as long as the block lasts.

    Args:
        rate: of the link in each direction, as `tc` spells it, for example ``1gbit``; empty: not limited.

    Raises:
        NoNodeNetworks: this machine allows no network namespace or no limited rate, or lacks ``ip`` or
            ``tc`` (package iproute2).
    """

    def __init__(self, rate: str = "") -> None:
        # It ends with this program, whose end closes its input.
        self._second = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo up; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            if self._second.stdout is None or self._second.stdout.readline() != b"up\n":
                raise NoNodeNetworks("this system allows no network namespaces to users")
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

    def _run(self, node: int, *command: str) -> None:
        try:
            words = self.wrap_command(node, list(command))
            subprocess.run(words, check=True, capture_output=True, text=True)
        except subprocess.CalledProcessError as error:
            raise NoNodeNetworks(f"`{' '.join(command)}` failed: {error.stderr.strip()}") from error

    def wrap_command(self, node: int, command: list[str]) -> list[str]:
        """Return the command line that runs a command on a node, 0 or 1; it keeps its process id."""
        return ["nsenter", f"--target={self._second.pid}", "--net", *command] if node else command

    def cut(self) -> None:
        """Cut the link: packets vanish, and no connection closes."""
        self._run(0, "ip", "link", "set", LINK, "down")

    def heal(self) -> None:
        self._run(0, "ip", "link", "set", LINK, "up")

    def close(self) -> None:
        self._second.kill()
        self._second.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
