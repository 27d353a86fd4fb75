"""Compare restarts of one script under ``elastane run --contract torchrun`` and under tuned torchrun.

Both run ``train_torchrun.py`` in a private network, in turns: a second worker joins, a worker is killed with
SIGKILL, and the second worker leaves. The pause is the longest time in which no step was finished for the
first time, so it contains the steps that are done again after the snapshot.

Writes ``benchmarks/results/unmodified_scripts-<machine>.json``; with ``--quick``, into ``build/benchmarks``.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Self, TypeAlias

import machine
from elastane_run import ELASTANE
from job import HERE, Job
from processes import exit_on_sigterm, wait_until
from restart import count_lost_steps, find_longest_stall_s
from spread import format_spread
from torchrun import TorchrunRun

EVENTS = ("join", "kill", "leave")
TITLES = {"join": "1 to 2 workers", "kill": "kill -9", "leave": "2 to 1 workers"}
VIRTUAL_RANKS = 4
CALM_STEPS = 15


class ElasticTorchrun(TorchrunRun):
    """Two agents of torchrun, of which the second comes and goes."""

    def __enter__(self) -> Self:
        self._agents = [self.start_agent()]
        return self

    def join(self) -> None:
        self._agents.append(self.start_agent())

    def leave(self) -> None:
        # The first agent keeps the store of the rendezvous.
        agent = self._agents.pop()
        self.stop(agent)
        # Its exit code does not count as a failure of the run.
        self.processes.started.remove(agent)


class ScriptRun(TorchrunRun):
    """The same script under ``elastane run --contract torchrun``."""

    def __enter__(self) -> Self:
        self._home = str(self.processes.folder / "home")
        options = ("run", "--contract", "torchrun", "--workers", "1:2", "--start", "1", "--name", "bench")
        self._call(*options, *self.job.build_script_command("torchrun"))
        return self

    def join(self) -> None:
        self._call("resize", "bench", "2").wait(60)

    def leave(self) -> None:
        self._call("resize", "bench", "1").wait(60)

    def _call(self, *words: str) -> subprocess.Popen[bytes]:
        return self.processes.start(self.network.wrap_command([*ELASTANE, *words]), ELASTANE_HOME=self._home)


Contestant: TypeAlias = ElasticTorchrun | ScriptRun


def has_new_processes(run: Contestant, before: set[int], number: int) -> bool:
    """Return whether this many processes have made a step, beside those of before."""
    return len({tick.pid for tick in run.read_ticks()} - before) >= number


def measure(run: Contestant) -> dict[str, float]:
    """Disturb a run three times and return the pauses in seconds, and the steps that were done again."""
    run.wait_for_step(CALM_STEPS)
    found: dict[str, float] = {}
    for event in EVENTS:
        before = {tick.pid for tick in run.read_ticks()}
        begin_s = time.monotonic()
        if event == "kill":
            os.kill(run.find_newest_pids(2)[1], signal.SIGKILL)
        else:
            getattr(run, event)()
        arrived = partial(has_new_processes, run, before, 1 if event == "leave" else 2)
        wait_until(arrived, f"steps after {event}", 180)
        run.wait_for_step(run.find_last_step() + CALM_STEPS)
        end_s = time.monotonic()
        found[event] = find_longest_stall_s(run.read_ticks(), begin_s, end_s)
        found[f"{event}_lost_steps"] = count_lost_steps(run.read_ticks(), begin_s, end_s)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short repetition, to try the harness")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--size", default="1m", help="of the model, a key of workload.SIZES")
    options = parser.parse_args()
    exit_on_sigterm()
    repetitions = 1 if options.quick else options.repetitions
    contestants: dict[str, Callable[[Job, Path], AbstractContextManager[Contestant]]] = {
        "torchrun": ElasticTorchrun,
        "elastane": ScriptRun,
    }
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    target = (HERE.parent / "build/benchmarks") if options.quick else HERE / "results"
    target.mkdir(parents=True, exist_ok=True)
    path = target / f"unmodified_scripts-{machine.make_file_name()}.json"
    with tempfile.TemporaryDirectory(prefix="elastane-scripts-") as folder:
        for repetition in range(repetitions):
            for name, contestant in contestants.items():
                out = Path(folder, f"{name}-{repetition}")
                with contestant(Job(options.size, 1_000_000, VIRTUAL_RANKS, out), out / "logs") as run:
                    runs[name].append(measure(run))
                print(name, runs[name][-1], flush=True)
            # Written after each repetition, so that a failure in the last one does not lose the others.
            write_results(path, runs)
    print_table(runs)
    print(f"wrote {path}")


def write_results(path: Path, runs: dict[str, list[dict[str, float]]]) -> None:
    result = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "machine": machine.describe(),
        "elastane": machine.describe_commit(),
        "command": " ".join(["python benchmarks/unmodified_scripts.py", *sys.argv[1:]]),
        "runs": runs,
    }
    path.write_text(json.dumps(result, indent=1) + "\n")


def print_table(runs: dict[str, list[dict[str, float]]]) -> None:
    """Print one row per event: pauses, and the ratio of runs that followed one another."""
    print("| event | torchrun, pause s | elastane, pause s | ratio |\n|---|---|---|---|")
    for event in EVENTS:
        theirs = [run[event] for run in runs["torchrun"]]
        ours = [run[event] for run in runs["elastane"]]
        ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        cells = (TITLES[event], format_spread(theirs), format_spread(ours), format_spread(ratios))
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
