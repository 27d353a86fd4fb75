"""``elastane logs``: the output of the processes of a run or a job."""

import re
import time
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated

from elastane.cli.command import AsJob, AsJson, Name, print_json
from elastane.cli.options import argument, flag, option
from elastane.cli.run_lookup import find_run_or_job
from elastane.cli.runs.requests import poll_run
from elastane.cli.terminal import split_log_line
from elastane.cluster.client.context import connect
from elastane.cluster.nouns.job_records import ENDED
from elastane.common.errors import BadInput
from elastane.common.safe_text import escape_line, make_storable
from elastane.run.nouns.membership import FIRST_NODE_WORD, NODE_NAME, NodeName
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import decode_event_line
from elastane.run.observability.tail import Tail

if TYPE_CHECKING:
    from elastane.cluster.client.cluster import Cluster

_NODE_LOG = re.compile(rf"(?:agent|coordinator|fork-server)-({NODE_NAME})")
_WORKER_LOG = re.compile(r"worker-(\d+)(?:-\d+)?")
_NODE_EVENT = re.compile(rf"node ({NODE_NAME})")


def logs(
    name: Name,
    process: Annotated[
        str | None,
        argument(
            "PROCESS",
            "A worker's number, agent, coordinator, fork-server or an agent's id. Default: all of them.",
        ),
    ] = None,
    node: Annotated[
        str | None,
        option("NODE", "Only processes of this machine of a run; first: the one on which it began."),
    ] = None,
    follow: Annotated[bool, flag("Print new lines until the run or job is over.", "--follow", "-f")] = False,
    job: AsJob = False,
    raw: Annotated[bool, flag("Print the output unchanged, with control characters.", "--raw")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the output of the processes of NAME.

    A run on this machine wins over a job of the cluster of the same name,
    unless --job is given.

    Control characters are escaped and colours removed, so that the output of a
    job cannot control your terminal; --raw shows the output unchanged.

    With --json, one object per line, with the keys process and line.
    """
    run_dir = find_run_or_job(name, job=job)
    if run_dir is not None:
        show_run_logs(run_dir, process, node=node, follow=follow, as_json=as_json, raw=raw)
    elif node is not None:
        raise BadInput(
            f"{name} is a job of the cluster, and --node is for runs on several machines",
            do=f"elastane logs {name} shows the output of all its processes",
        )
    else:
        show_job_logs(name, process, follow=follow, as_json=as_json, raw=raw)


def show_run_logs(
    run_dir: RunDir, process: str | None, *, node: str | None, follow: bool, as_json: bool, raw: bool
) -> None:
    """Print the log of one process, or of all; with ``follow`` until the run is over."""
    find_logs = LogFinder(run_dir, node)
    wanted = None if process is None else find_process(run_dir, process, find_logs())
    tails: dict[str, Tail] = {}
    for more in poll_run(run_dir, follow=follow):
        for name in [wanted] if wanted else find_logs().values():
            tail = tails.setdefault(name, Tail(run_dir.files, run_dir.log(name)))
            for line in tail.read_new_lines(at_end=not more):
                text = line.decode(errors="replace")
                print_log_line(name, text, prefix=wanted is None, as_json=as_json, raw=raw)


class LogFinder:
    """Finds the processes of a run that have a log, on the machine that was typed; None: on all of them."""

    def __init__(self, run_dir: RunDir, node: str | None) -> None:
        self._run_dir = run_dir
        self._processes = None if node is None else NodeProcesses(run_dir)
        self._node = ""
        if self._processes is not None and node is not None:
            self._processes.read_new_events()
            self._node = self._processes.find_node(node, list_logged_processes(run_dir))

    def __call__(self) -> dict[str, str]:
        """Return the present names of the processes, each with the name of its log."""
        logged = list_logged_processes(self._run_dir)
        if self._processes is None:
            return {name: name for name in logged}
        self._processes.read_new_events()
        return self._processes.select(logged, self._node)


def list_logged_processes(run_dir: RunDir) -> list[str]:
    """Return the processes that have a log: workers by number, then the others."""
    return sorted(run_dir.list_logs(), key=lambda name: (not name.startswith("worker-"), len(name), name))


def find_process(run_dir: RunDir, text: str, known: Mapping[str, str]) -> str:
    """Return the name of the log of a process: one of ``known``, by a worker's number or its name."""
    process = f"worker-{text}" if text.isdigit() else text
    if process in known:
        return known[process]
    raise BadInput(
        f"{run_dir.root} has no log of {process}",
        do=f"choose one of {', '.join(known)}" if known else "wait until a process has started",
    )


def print_log_line(process: str, line: str, *, prefix: bool, as_json: bool, raw: bool) -> None:
    """Print a line of a log; ``raw``: unchanged, with its control characters."""
    if as_json:
        print_json({"process": make_storable(process), "line": line})
        return
    for part in [line] if raw else split_log_line(line):
        print(f"{escape_line(process)} | {part}" if prefix else part, flush=True)


LOOK_S = 1.0


class LineSplitter:
    """Splitter of a stream of bytes into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def split(self, part: bytes, *, at_end: bool = False) -> list[str]:
        """Return the lines that end in this part; with ``at_end`` the unfinished last line too."""
        *whole, self._rest = (self._rest + part).split(b"\n")
        if at_end and self._rest:
            whole, self._rest = [*whole, self._rest], b""
        return [line.decode(errors="replace") for line in whole]


class JobLog:
    """Reader of the log of one process that continues where it stopped."""

    def __init__(self, job: str, process: str) -> None:
        self._job, self._process = job, process
        self._offset = 0
        self._lines = LineSplitter()

    def new_lines(self, cluster: "Cluster", *, at_end: bool) -> Iterator[str]:
        """Yield the new lines; ``at_end``: nothing will follow, so an unfinished last line counts too."""
        while True:
            part, following = cluster.jobs.logs(self._job, self._process, offset=self._offset)
            yield from self._lines.split(part, at_end=at_end and not part)
            if not part:
                return
            self._offset = following


def show_job_logs(name: str, process: str | None, *, follow: bool, as_json: bool, raw: bool) -> None:
    """Print the log of one process, or of all; with ``follow`` until the job has ended."""
    logs: dict[str, JobLog] = {}
    with connect() as cluster:
        while True:
            # Check before reading, so that the last lines are still read.
            more = follow and cluster.jobs.get(name).state not in ENDED
            for logged in _select_logs(name, process, cluster.jobs.processes(name), may_come=more):
                log = logs.setdefault(logged, JobLog(name, logged))
                for line in log.new_lines(cluster, at_end=not more):
                    print_log_line(logged, line, prefix=process is None, as_json=as_json, raw=raw)
            if not more:
                return
            time.sleep(LOOK_S)


def _select_logs(
    name: str, process: str | None, known: tuple[str, ...], *, may_come: bool
) -> tuple[str, ...]:
    """Return the names of the logs to print; empty only if they may still come."""
    if process is None:
        found = known
    else:
        asked = f"worker-{process}" if process.isdigit() else process
        found = tuple(logged for logged in known if logged == asked)
    if found or may_come:
        return found
    what = "any of its processes" if process is None else process
    raise BadInput(
        f"job {name} has no log of {what} yet",
        do=f"choose one of {', '.join(known)}"
        if known
        else f"elastane explain {name} shows what the job waits for",
    )


class NodeProcesses:
    """Tells which processes of a run are or were on one of its machines; reads new events as they come.

    Args:
        run_dir: of the run, or its mirror.
    """

    def __init__(self, run_dir: RunDir) -> None:
        self._tail = Tail(run_dir.files, run_dir.events)
        self._nodes: set[NodeName] = {""}
        self._workers: dict[str, NodeName] = {}

    def read_new_events(self) -> None:
        """Learn the machines of the workers that have started since the last call."""
        for line in self._tail.read_new_lines():
            event = decode_event_line(line)
            if event.kind.startswith("node.") and (named := _NODE_EVENT.fullmatch(event.who)):
                self._nodes.add(named[1])
            elif event.kind == "worker.started":
                node = event.detail.get("node") or ""
                # A number may be used again after a resume, on another machine.
                self._workers |= {str(worker): str(node) for worker in event.workers}

    def select(self, logged: list[str], node: NodeName) -> dict[str, str]:
        """Return the processes of one machine: what they are called on it, with the names of their logs."""
        found = {}
        for log in logged:
            if worker := _WORKER_LOG.fullmatch(log):
                if self._workers.get(worker[1]) == node:
                    found[log] = log
            elif (named := _NODE_LOG.fullmatch(log)) is None:
                if not node:
                    found[log] = log
            elif named[1] == node:
                found[log.removesuffix(f"-{node}")] = log
        return found

    def find_node(self, word: str, logged: list[str]) -> NodeName:
        """Return the name of a machine as users write it; ``first`` is the one without a name."""
        self._nodes |= {named[1] for log in logged if (named := _NODE_LOG.fullmatch(log))}
        node = "" if word == FIRST_NODE_WORD else word
        if node in self._nodes:
            return node
        known = [name or FIRST_NODE_WORD for name in sorted(self._nodes)]
        near = get_close_matches(word, known, n=1)
        raise BadInput(
            f"no machine {word!r} has taken part in this run",
            means=f"machines of the run: {', '.join(known)}",
            do=f"did you mean {near[0]}?" if near else "choose one of them",
        )
