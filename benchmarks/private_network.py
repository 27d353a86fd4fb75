"""A private network for torchrun: its stores listen on every address, and nothing outside can reach them."""

import subprocess
import sys
from types import TracebackType
from typing import Self

# SIOCSIFFLAGS with IFF_UP | IFF_LOOPBACK | IFF_RUNNING: the loopback of a new network is down at first.
HOLDER = """
import fcntl, socket, struct, sys
with socket.socket() as s:
    fcntl.ioctl(s, 0x8914, struct.pack('16sh14x', b'lo', 0x49))
print('up', flush=True)
sys.stdin.read()
"""


class NoPrivateNetwork(RuntimeError):
    """This machine does not allow a private network."""


class PrivateNetwork:
    """A network that exists as long as the process that holds it open."""

    def __init__(self) -> None:
        self.holder = subprocess.Popen(
            ["unshare", "--map-root-user", "--net", sys.executable, "-c", HOLDER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        if self.holder.stdout is None or self.holder.stdout.readline() != b"up\n":
            self.close()
            raise NoPrivateNetwork("unshare --net is not permitted here")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.holder.kill()
        self.holder.communicate()

    def wrap_command(self, command: list[str]) -> list[str]:
        """Return the command line that runs ``command`` in this network."""
        target = f"--target={self.holder.pid}"
        return ["nsenter", target, "--user", "--preserve-credentials", "--net", *command]
