"""Logs of the processes of a run."""

from collections.abc import Mapping

from elastane.cli.command import print_json
from elastane.cli.runs.node_processes import NodeProcesses
from elastane.cli.runs.run_polling import poll_run
from elastane.cli.terminal import split_log_line
from elastane.common.errors import BadInput
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.tail import Tail


def show_run_logs(
    run_dir: RunDir, process: str | None, *, node: str | None, follow: bool, as_json: bool, raw: bool
) -> None:
    """Print the log of one process, or of all; with ``follow`` until the run is over.

    Args:
        process: as typed; None: all of them.
        node: show only processes of this machine; None: of all machines.
        follow: print new lines until the run is over.
        as_json: print objects.
        raw: print lines unchanged.

    Raises:
        BadInput: there is no such process or machine.
    """
    find_logs = LogFinder(run_dir, node)
    wanted = None if process is None else find_process(run_dir, process, find_logs())
    tails: dict[str, Tail] = {}
    for more in poll_run(run_dir, follow=follow):
        for name in [wanted] if wanted else find_logs().values():
            tail = tails.setdefault(name, Tail(run_dir.log(name)))
            for line in tail.read_new_lines(at_end=not more):
                text = line.decode(errors="replace")
                print_log_line(name, text, prefix=wanted is None, as_json=as_json, raw=raw)


class LogFinder:
    """Finds the processes that have a log, of all machines of a run or of one.

    Args:
        node: the machine, as typed; None: all of them.

    Raises:
        BadInput: the run has had no such machine.
    """

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
    names = [path.stem for path in run_dir.logs.glob("*.log")]
    return sorted(names, key=lambda name: (not name.startswith("worker-"), len(name), name))


def find_process(run_dir: RunDir, text: str, known: Mapping[str, str]) -> str:
    """Return the name of the log of a process.

    Args:
        text: a worker's number, or the name of a process.
        known: the processes to choose from, each with the name of its log.

    Raises:
        BadInput: no process to choose from has this number or name.
    """
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
        print_json({"process": process, "line": line})
        return
    for part in [line] if raw else split_log_line(line):
        print(f"{process} | {part}" if prefix else part, flush=True)
