"""A real Ray on this machine: a head and two raylets with devices, in a folder and at ports of their own.

Ray is taken from the Python that the variable ELASTANE_RAY names, or that of the tests. To make one:
``python -m venv ray``, ``ray/bin/pip install 'ray[default]==2.60.0'``, ``ELASTANE_RAY=$PWD/ray/bin/python``.
"""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.cluster.engines.slurm_daemons import find_free_ports
from tests.waiting import wait_until

VARIABLE = "ELASTANE_RAY"
MARK = "ELASTANE_TEST_RAY"
"""Variable of the environment of all processes of a test's Ray, and of their children."""
ON_LOOPBACK = ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
HEAD, *NODES = ("n1", "n2", "n3")
DEVICES, CPUS = 2, 4
PORTS_OF_NODE = 4
START_S = 150
PROGRAM = str(Path(__file__).with_name("loopback_ray.py"))
LOOKS = """\
import json, ray
ray.init(address="127.0.0.1:{port}", log_to_driver=False)
print(json.dumps({{node["NodeName"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}}))
"""


def find_ray() -> str:
    """Return the path of a Python that has Ray; skip the test if there is none."""
    if named := os.environ.get(VARIABLE):
        return named
    if importlib.util.find_spec("ray") is None:
        pytest.skip(f"there is no Ray; {VARIABLE} can name a Python with it (pip install ray)")
    return sys.executable


ACTORS = """\
import json, ray
ray.init(address="127.0.0.1:{port}", namespace={namespace!r}, log_to_driver=False)
print(json.dumps(ray.util.list_named_actors()))
"""


class RayDaemons:
    """The daemons of the nodes: ``n1`` is the head, without devices."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        self.python = python
        self.ports = find_free_ports(1 + PORTS_OF_NODE * (1 + len(NODES)))
        self.address = f"127.0.0.1:{self.ports[0]}"
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            MARK: str(folder),
        }

    def run(self, *words: str) -> str:
        """Run the program ``ray``, and return its output."""
        done = subprocess.run(
            (self.python, PROGRAM, *words),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, node: str) -> None:
        """Start the daemons of a node."""
        is_head = node == HEAD
        number = (HEAD, *NODES).index(node)
        first = self.ports[1 + PORTS_OF_NODE * number]
        where = (
            ("--head", f"--port={self.ports[0]}", "--include-dashboard=false", f"--temp-dir={self.folder}")
            if is_head
            else (f"--address={self.address}",)
        )
        self.run(
            "start",
            *where,
            "--node-ip-address=127.0.0.1",
            f"--node-name={node}",
            f"--num-cpus={0 if is_head else CPUS}",
            f"--num-gpus={0 if is_head else DEVICES}",
            "--object-store-memory=80000000",
            "--disable-usage-stats",
            # Ray chooses them otherwise, and two nodes of one machine may choose the same.
            f"--dashboard-agent-listen-port={first}",
            f"--dashboard-agent-grpc-port={first + 1}",
            f"--runtime-env-agent-port={first + 2}",
            f"--metrics-export-port={first + 3}",
        )

    def start_all(self) -> None:
        for node in (HEAD, *NODES):
            self.start(node)

    def list_nodes(self) -> dict[str, str]:
        """Return the ids of the nodes that Ray calls alive, by name."""
        return self._ask(LOOKS.format(port=self.ports[0]))

    def list_actors(self, namespace: str) -> list[str]:
        """Return the names of the actors in a namespace."""
        return self._ask(ACTORS.format(port=self.ports[0], namespace=namespace))

    def _ask(self, program: str):
        """Return what a program prints that connects to this Ray."""
        done = subprocess.run(
            (self.python, "-c", program),
            env=self._environment | dict([ON_LOOPBACK]),
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def drain(self, node: str, seconds: int) -> None:
        """Let Ray drain a node, as before a spot machine goes."""
        self.run(
            "drain-node",
            f"--address={self.address}",
            f"--node-id={self.list_nodes()[node]}",
            "--reason=DRAIN_NODE_REASON_PREEMPTION",
            "--reason-message=test",
            f"--deadline-remaining-seconds={seconds}",
        )

    def list_drivers(self) -> list[int]:
        """Return the pids of the drivers of engines."""
        words = {path: (path / "cmdline") for path in Path("/proc").iterdir() if path.name.isdecimal()}
        found = []
        for path, line in words.items():
            with suppress(OSError):
                if {b"-I", self.address.encode()} <= set(line.read_bytes().split(b"\0")):
                    found.append(int(path.name))
        return found

    def find_raylet(self, node: str) -> int:
        (pid,) = (
            pid
            for pid, words in self.list_processes()
            if Path(words[0]).name == "raylet" and f"--node-name={node}" in words
        )
        return pid

    def signal_head(self, number: signal.Signals) -> None:
        """Send a signal to the part of the head that knows the cluster."""
        for pid, words in self.list_processes():
            if Path(words[0]).name == "gcs_server":
                os.kill(pid, number)

    @contextmanager
    def pause_head(self) -> Iterator[None]:
        """Stop the head until the context ends."""
        self.signal_head(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal_head(signal.SIGCONT)

    def list_processes(self) -> list[tuple[int, list[str]]]:
        """Return the pids and words of all processes of this Ray, and of their children."""
        mark = f"{MARK}={self.folder}".encode()
        found = []
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                with suppress(OSError):
                    if mark in (process / "environ").read_bytes().split(b"\0"):
                        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
                        found.append((int(process.name), words))
        return found

    def end_all(self) -> None:
        def kill() -> bool:
            for pid, _ in (left := self.list_processes()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        wait_until(kill, "no process of Ray is left", state=self.list_processes)

    def read_logs(self) -> str:
        """Return the ends of the logs of Ray, for the error of a test."""
        logs = sorted(self.folder.glob("session_latest/logs/*.out")) + sorted(
            self.folder.glob("session_latest/logs/*.err")
        )
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-300:]}" for log in logs)


@contextmanager
def open_ray() -> Iterator[RayDaemons]:
    """Start a Ray, and end it when the context does."""
    python = find_ray()
    # Not below pytest's folders: the path of a socket has at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="elastane-ray-"))
    daemons = RayDaemons(folder, python)
    try:
        daemons.start_all()
        with pytest.MonkeyPatch.context() as patch:
            # The driver otherwise replaces 127.0.0.1 by an address at which this Ray does not listen.
            patch.setenv(*ON_LOOPBACK)
            yield daemons
    finally:
        daemons.end_all()
        shutil.rmtree(folder, ignore_errors=True)
