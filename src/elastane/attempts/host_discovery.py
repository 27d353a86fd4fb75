"""A host discovery script as the source of a run's capacity, as in Horovod.

The script prints a line for each host, ``NAME`` or ``NAME:SLOTS``. A run spans one machine, so the slots of
other hosts do not count.
"""

import re
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from elastane.api.control import AskResize
from elastane.api.errors import BadInput, ElastaneError
from elastane.api.rundir import RunDir
from elastane.api.safe_text import escape_line
from elastane.api.untrusted_data import Malformed
from elastane.client.coordinator_request import ask_coordinator

EVERY_S = 1.0
"""The script runs this often, as under Horovod."""
SCRIPT_S = 30.0
LARGEST_OUTPUT_BYTES = 2**20
MOST_SLOTS = 2**16
LINE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,9}))?")
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class DiscoveredCapacity:
    """The discovered capacity of a run.

    Args:
        workers: as many as fit, within the limits of the run.
        remarks: on hosts and slots that the run cannot use.
    """

    workers: int
    remarks: tuple[str, ...] = ()


def parse_hosts(output: bytes) -> dict[str, int]:
    """Return the slots of each host that a discovery script has printed; a host without a number has one.

    Raises:
        Malformed: a line is not a host, or there are too many.
    """
    if len(output) > LARGEST_OUTPUT_BYTES:
        raise Malformed(f"it printed more than {LARGEST_OUTPUT_BYTES} bytes")
    hosts: dict[str, int] = {}
    for line in filter(None, map(str.strip, output.decode("utf-8", "replace").splitlines())):
        match = LINE.fullmatch(line)
        if match is None or int(match[2] or 1) > MOST_SLOTS:
            raise Malformed(f"{escape_line(line[:200])!r} is not HOST or HOST:SLOTS")
        host = match[1].strip("[]")
        hosts[host] = hosts.get(host, 0) + int(match[2] or 1)
    return hosts


def measure_capacity(
    hosts: Mapping[str, int], own_names: frozenset[str], *, processes: int, low: int, high: int
) -> DiscoveredCapacity:
    """Return how many workers fit on this machine, within the limits of the run.

    Args:
        hosts: the slots of each host.
        own_names: the names of this machine.
        processes: slots that each worker takes.
        low: fewest workers.
        high: most workers.
    """
    slots = sum(count for host, count in hosts.items() if host in own_names)
    remarks = [
        f"host {host} is not this machine, and a run spans one machine: its slots do not count"
        for host in sorted(hosts.keys() - own_names)
    ]
    fitting = slots // processes
    if fitting < low:
        remarks.append(
            f"this machine has {slots} slots, too few for {low} workers; the run keeps its minimum"
        )
    return DiscoveredCapacity(min(max(fitting, low), high), tuple(remarks))


def list_own_names() -> frozenset[str]:
    """Return the names of this machine."""
    return LOOPBACK_NAMES | {socket.gethostname(), socket.getfqdn()}


@dataclass(slots=True)
class HostDiscovery:
    """A context manager that sets the number of workers of a run, from a thread of its own.

    A script that fails, or prints something else, changes nothing: the run keeps its size, and says why.

    Args:
        script: an executable file, or a command with arguments for the shell.
        processes: slots that each worker takes.
        low: fewest workers.
        high: most workers.
        say: reports what cannot be used, each remark once.
    """

    script: str
    processes: int
    low: int
    high: int
    say: Callable[[str], None]
    _run_dir: RunDir | None = None
    _size: int | None = None
    _said: set[str] = field(default_factory=set)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def discover(self) -> DiscoveredCapacity:
        """Run the script once.

        Raises:
            BadInput: the script fails, or prints something else than hosts.
        """
        try:
            done = subprocess.run(  # noqa: S602 - the user's own command, as Horovod runs it
                self.script,
                shell=True,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=SCRIPT_S,
                check=True,
            )
            hosts = parse_hosts(done.stdout)
        except subprocess.CalledProcessError as error:
            last = error.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            what = f"it ended with code {error.returncode}" + (f": {escape_line(last[:500])}" if last else "")
            raise self._refuse(what) from error
        except subprocess.TimeoutExpired as error:
            raise self._refuse(f"it took more than {SCRIPT_S:.0f} s") from error
        except (Malformed, OSError) as error:
            raise self._refuse(str(error)) from error
        return measure_capacity(
            hosts, list_own_names(), processes=self.processes, low=self.low, high=self.high
        )

    def attach(self, run_dir: RunDir, size: int) -> Self:
        """Set the run to follow, and its present number of workers; returns itself."""
        self._run_dir, self._size = run_dir, size
        return self

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._follow, name="elastane-host-discovery", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def _follow(self) -> None:
        while not self._over.wait(EVERY_S):
            try:
                capacity = self.discover()
                self._apply(capacity)
            # The next answer of the script, or of the coordinator, may be usable.
            except ElastaneError as error:
                self._say_once(str(error))

    def _apply(self, capacity: DiscoveredCapacity) -> None:
        for remark in capacity.remarks:
            self._say_once(remark)
        if capacity.workers != self._size and self._run_dir is not None:
            answer = ask_coordinator(self._run_dir, AskResize(workers=capacity.workers))
            if answer.ok:
                self._size = capacity.workers
            else:
                self._say_once(f"the discovered hosts cannot be used: {answer.why}")

    def _say_once(self, remark: str) -> None:
        if remark not in self._said and not self._over.is_set():
            self._said.add(remark)
            self.say(f"note: {remark}")

    def _refuse(self, what: str) -> BadInput:
        return BadInput(
            f"the host discovery script {Path(self.script).name} cannot be used: {what}",
            means="the run keeps its number of workers",
            do="let it print a line HOST or HOST:SLOTS for each host, and end with code 0",
        )
