"""Logs of the processes of a run."""

from elastane.api.errors import BadInput
from elastane.api.rundir import RunDir
from elastane.cli.command import print_json
from elastane.cli.runs.run_polling import poll_run
from elastane.cli.terminal import split_log_line
from elastane.observability.tail import Tail


def show_run_logs(run_dir: RunDir, process: str | None, *, follow: bool, as_json: bool, raw: bool) -> None:
    """Print the log of one process, or of all; with ``follow`` until the run is over."""
    wanted = None if process is None else find_process(run_dir, process)
    tails: dict[str, Tail] = {}
    for more in poll_run(run_dir, follow=follow):
        for name in [wanted] if wanted else list_logged_processes(run_dir):
            tail = tails.setdefault(name, Tail(run_dir.log(name)))
            for line in tail.read_new_lines(at_end=not more):
                text = line.decode(errors="replace")
                print_log_line(name, text, prefix=wanted is None, as_json=as_json, raw=raw)


def list_logged_processes(run_dir: RunDir) -> list[str]:
    """Return the processes that have a log: workers by number, then the others."""
    names = [path.stem for path in run_dir.logs.glob("*.log")]
    return sorted(names, key=lambda name: (not name.startswith("worker-"), len(name), name))


def find_process(run_dir: RunDir, text: str) -> str:
    process = f"worker-{text}" if text.isdigit() else text
    known = list_logged_processes(run_dir)
    if process not in known:
        raise BadInput(
            f"{run_dir.root} has no log of {process}",
            do=f"choose one of {', '.join(known)}" if known else "wait until a process has started",
        )
    return process


def print_log_line(process: str, line: str, *, prefix: bool, as_json: bool, raw: bool) -> None:
    """Print a line of a log; ``raw``: unchanged, with its control characters."""
    if as_json:
        print_json({"process": process, "line": line})
        return
    for part in [line] if raw else split_log_line(line):
        print(f"{process} | {part}" if prefix else part, flush=True)
