"""A host discovery script as the source of a run's capacity, as in Horovod.

The script prints a line for each host, ``NAME`` or ``NAME:SLOTS``. A run spans one machine, so the slots of
other hosts do not count.
"""

import re
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from elastane.common.errors import BadInput, ElastaneError
from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import Malformed
from elastane.run.nouns.control import AskResize
from elastane.run.nouns.hosts import list_own_names
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunSpec

EVERY_S = 1.0
"""The script runs this often, as under Horovod."""
SCRIPT_S = 30.0
LARGEST_OUTPUT_BYTES = 2**20
MOST_SLOTS = 2**16
LINE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,9}))?")


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
        processes: slots that each worker takes.
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


def discover_capacity(spec: RunSpec) -> DiscoveredCapacity:
    """Run the discovery script of a run once.

    Raises:
        BadInput: the script fails, or prints something else than hosts.
    """
    try:
        done = subprocess.run(  # noqa: S602 - the user's own command, as Horovod runs it
            spec.host_discovery,
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
        raise _build_error(spec, what) from error
    except subprocess.TimeoutExpired as error:
        raise _build_error(spec, f"it took more than {SCRIPT_S:.0f} s") from error
    except (Malformed, OSError) as error:
        raise _build_error(spec, str(error)) from error
    return measure_capacity(
        hosts,
        list_own_names(),
        processes=spec.worker_processes,
        low=spec.min_workers,
        high=spec.max_workers,
    )


class FollowedHosts:
    """A context manager that sets the number of workers of a run, from a thread of its own.

    A script that fails, or prints something else, changes nothing: the run keeps its size, and says why.

    Args:
        spec: of the run, with a discovery script.
        say: reports what cannot be used, each remark once.
    """

    def __init__(self, run_dir: RunDir, spec: RunSpec, say: Callable[[str], None]) -> None:
        self._run_dir, self._spec, self._say = run_dir, spec, say
        self._workers = spec.start
        self._remarks: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="host-discovery", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def _follow(self) -> None:
        while not self._over.wait(EVERY_S):
            try:
                self._apply(discover_capacity(self._spec))
            # The next answer of the script, or of the coordinator, may be usable.
            except ElastaneError as error:
                self._remark(str(error))

    def _apply(self, capacity: DiscoveredCapacity) -> None:
        for remark in capacity.remarks:
            self._remark(remark)
        if capacity.workers == self._workers:
            return
        # The command line loads this module, and must not load sockets.
        from elastane.run.connections.coordinator_request import ask_coordinator

        answer = ask_coordinator(self._run_dir, AskResize(workers=capacity.workers))
        if answer.ok:
            self._workers = capacity.workers
        else:
            self._remark(f"the discovered hosts cannot be used: {answer.why}")

    def _remark(self, remark: str) -> None:
        if remark not in self._remarks and not self._over.is_set():
            self._remarks.add(remark)
            self._say(f"note: {remark}")


def _build_error(spec: RunSpec, what: str) -> BadInput:
    return BadInput(
        f"the host discovery script {spec.host_discovery!r} cannot be used: {what}",
        means="the run keeps its number of workers",
        do="let it print a line HOST or HOST:SLOTS for each host, and end with code 0",
    )
