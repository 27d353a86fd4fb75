"""A network of its own for torchrun, whose stores listen on every address: nothing outside can reach them."""

import subprocess
import sys
from types import TracebackType
from typing import Self

# SIOCSIFFLAGS with IFF_UP | IFF_LOOPBACK | IFF_RUNNING: a new network begins with its loopback down.
HOLDER = """
import fcntl, socket, struct, sys
with socket.socket() as s:
    fcntl.ioctl(s, 0x8914, struct.pack('16sh14x', b'lo', 0x49))
print('up', flush=True)
sys.stdin.read()
"""


class NoPrivateNetwork(RuntimeError):
    """This machine lets us make none."""


class PrivateNetwork:
    """Lives as long as the process that holds it open."""

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

    def inside(self, command: list[str]) -> list[str]:
        """``command`` as it must be started to run in this network."""
        target = f"--target={self.holder.pid}"
        return ["nsenter", target, "--user", "--preserve-credentials", "--net", *command]
