"""What the processes of a run printed."""

from elastane.api.errors import BadInput
from elastane.api.rundir import RunDir
from elastane.cli.runs.following import looks
from elastane.cli.terminal import log_lines
from elastane.cli.verb import print_json
from elastane.observability.tail import Tail


def run_logs(run_dir: RunDir, process: str | None, *, follow: bool, as_json: bool, raw: bool) -> None:
    """The log of one process, or of all; followed until the run is over."""
    wanted = None if process is None else process_named(run_dir, process)
    tails: dict[str, Tail] = {}
    for more in looks(run_dir, follow=follow):
        for name in [wanted] if wanted else processes_of(run_dir):
            tail = tails.setdefault(name, Tail(run_dir.log(name)))
            for line in tail.new_lines(at_end=not more):
                text = line.decode(errors="replace")
                show(name, text, prefix=wanted is None, as_json=as_json, raw=raw)


def processes_of(run_dir: RunDir) -> list[str]:
    """Processes with a log, workers in the order of their numbers, then the others."""
    names = [path.stem for path in run_dir.logs.glob("*.log")]
    return sorted(names, key=lambda name: (not name.startswith("worker-"), len(name), name))


def process_named(run_dir: RunDir, text: str) -> str:
    process = f"worker-{text}" if text.isdigit() else text
    known = processes_of(run_dir)
    if process not in known:
        raise BadInput(
            f"{run_dir.root} holds no log of {process}",
            do=f"choose one of {', '.join(known)}" if known else "wait until a process has started",
        )
    return process


def show(process: str, line: str, *, prefix: bool, as_json: bool, raw: bool) -> None:
    """Prints a line of a log; ``raw``: as it is, whatever it does to the terminal."""
    if as_json:
        print_json({"process": process, "line": line})
        return
    for part in [line] if raw else log_lines(line):
        print(f"{process} | {part}" if prefix else part, flush=True)
