"""A Ray cluster on this machine: a head without devices, and nodes with one processor each.

All nodes are at 127.0.0.1, so it belongs into a network namespace: parts of Ray listen on every address.
"""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from job import HERE
from processes import wait_until

HEAD, FIRST, SECOND = "n1", "n2", "n3"
NODES = (HEAD, FIRST, SECOND)
PORT = 6379
PORTS_OF_NODE = 20_000
START_S = 180.0
ADDRESS = "BENCHMARK_RAY_ADDRESS"
"""Variable with the address, for programs that train there."""
MARK = "BENCHMARK_RAY_NODE"
"""Variable of the environment of all processes of a node, and of their children."""
ON_LOOPBACK = ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
"""Programs that connect to the cluster need this variable: they stay at 127.0.0.1."""
PROGRAM = HERE.parent / "tests" / "cluster" / "engines" / "loopback_ray.py"
LOOK = (
    "import ray; ray.init(address={address!r}, log_to_driver=False);"
    "print(next(n['NodeID'] for n in ray.nodes() if n['Alive'] and n['NodeName'] == {node!r}))"
)


class RayCluster:
    """``with RayCluster(...) as cluster:`` ends all its processes with the block; it begins with the head.

    Args:
        folder: of its logs; its path must be short, because it has sockets.
        python: an interpreter that has Ray.
    """

    def __init__(self, folder: Path, python: str) -> None:
        self.address = f"127.0.0.1:{PORT}"
        self.python = python
        self._folder = folder

    def start(self, node: str) -> None:
        """Start a node, and wait until it belongs to the cluster."""
        ports = PORTS_OF_NODE + 10 * NODES.index(node)
        where = (
            ("--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={self._folder}")
            if node == HEAD
            else (f"--address={self.address}",)
        )
        self._run(
            node,
            *(str(PROGRAM), "start", *where, "--node-ip-address=127.0.0.1", f"--node-name={node}"),
            *(f"--num-cpus={int(node != HEAD)}", "--num-gpus=0", "--object-store-memory=80000000"),
            *("--disable-usage-stats", f"--dashboard-agent-listen-port={ports}"),
            # Ray chooses them otherwise, and two nodes of one machine may choose the same.
            *(f"--dashboard-agent-grpc-port={ports + 1}", f"--runtime-env-agent-port={ports + 2}"),
            f"--metrics-export-port={ports + 3}",
        )

    def drain(self, node: str, seconds: int) -> None:
        """Announce the end of a node, as before a spot machine goes."""
        id_ = self._run(node, "-c", LOOK.format(address=self.address, node=node)).splitlines()[-1]
        self._run(
            node,
            *(str(PROGRAM), "drain-node", f"--address={self.address}", f"--node-id={id_}"),
            *("--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=benchmark"),
            f"--deadline-remaining-seconds={seconds}",
        )

    def end(self, node: str) -> None:
        """End a node at once, and wait until nothing of it is left."""
        for pid in self._list_processes(node):
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                # All else is a child of the first one, and must end by itself.
                if Path(f"/proc/{pid}/exe").readlink().name == "raylet" or b"log_monitor.py" in words:
                    os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self._list_processes(node), f"nothing of {node} is left", START_S, 0.5)

    def _run(self, node: str, *words: str) -> str:
        """Run Ray's Python, and return its output.

        Raises:
            RuntimeError: it failed.
        """
        variables = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        variables |= {MARK: node} | ({} if words[0] == str(PROGRAM) else dict([ON_LOOPBACK]))
        done = subprocess.run(
            [self.python, *words],
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=START_S,
        )
        if done.returncode != 0:
            raise RuntimeError(f"exit code {done.returncode} of {words}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def _list_processes(self, node: str) -> list[int]:
        mark, found = f"{MARK}={node}".encode(), []
        for process in Path("/proc").glob("[0-9]*"):
            # Processes come and go, and some belong to other users.
            with suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
        return found

    def __enter__(self) -> Self:
        try:
            self.start(HEAD)
        except BaseException:
            self._kill_all()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill_all()

    def _kill_all(self) -> None:
        def kill() -> bool:
            left = [pid for node in NODES for pid in self._list_processes(node)]
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        wait_until(kill, "nothing of Ray is left")
