"""Count the files that six pieces of work pass through: `python tools/measure_journeys.py [--tree DIR]`.

The script traces a real run and a real cluster with `sys.setprofile` in all of their processes. A journey is
a span of time between two marks. Its files are those files of src/elastane with a function that is entered in
the span, in any process, the command line's included; imports do not count. Its hops are the changes of file
from one entered function to the next in the same thread. Training continues during a resize, a checkpoint and
a death, so for those only files count that do not run in undisturbed training, and hops into them. `--tree`
measures another working tree; `--list` prints the files. The files that a reader has to open to follow a job
are those of the table in docs/concepts/job.md; the traced job must pass each of them.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
HOOK = Path(__file__).with_name("journey_hook")
WAY = "docs/concepts/job.md"
WAIT_S = 120
MARKED_STEP = 20

SCRIPT = f"""\
import os, time

def mark(name):
    with open(TRACE, "a") as trace:
        trace.write(f"{{time.monotonic_ns()}} {{os.getpid()}} 0 mark {{name}}\\n")

mark("script")
import elastane, sys, torch
from torch.utils.data import TensorDataset

run = elastane.join()
data = TensorDataset(torch.arange(128.0).reshape(64, 2), torch.arange(64.0))
model = torch.nn.Linear(2, 1)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9))
for step in run.steps(data, global_batch=8, microbatch=1, until=sys.argv[1] + " steps"):
    for inputs, targets in step:
        loss = ((model(inputs)[:, 0] - targets) ** 2).mean()
        if step.number == {MARKED_STEP}:
            mark("backward")
        step.backward(loss)
    if step.number == {MARKED_STEP}:
        mark("committed")
    time.sleep(0.1)
"""


@dataclass(frozen=True)
class Entry:
    """A line of the trace."""

    time_ns: int
    thread: tuple[str, str]
    place: str
    function: str


@dataclass(frozen=True)
class Journey:
    """The files and hops of a piece of work."""

    name: str
    files: tuple[str, ...]
    hops: int


class Tracing:
    """Traced processes in a home of their own."""

    def __init__(self, tree: Path, home: Path) -> None:
        self.tree, self.home = tree, home
        self.trace = home / "trace"
        self.environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(HOOK), str(tree / "src")]),
            "ELASTANE_JOURNEYS": str(self.trace),
            "ELASTANE_HOME": str(home),
        }
        self.script = home / "train.py"
        self.script.write_text(f"TRACE = {str(self.trace)!r}\n" + SCRIPT)

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "elastane.cli.main", *arguments]
        return subprocess.Popen(command, env=self.environment, cwd=self.home, stdout=subprocess.DEVNULL)

    def call(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "elastane.cli.main", *arguments]
        done = subprocess.run(
            command, check=True, env=self.environment, cwd=self.home, stdout=subprocess.PIPE, text=True
        )
        return done.stdout

    def read(self) -> list[Entry]:
        entries = []
        for line in self.trace.read_text().splitlines():
            time_ns, process, thread, place, function = line.split(" ", 4)
            entries.append(Entry(int(time_ns), (process, thread), place, function))
        return sorted(entries, key=lambda entry: entry.time_ns)

    def count_steps(self, run: str) -> int:
        ledger = self.home / "runs" / run / "ledger.jsonl"
        return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


def wait_until(done: Callable[[], bool], what: str) -> None:
    """Poll a condition.

    Raises:
        SystemExit: it does not come true.
    """
    end_s = time.monotonic() + WAIT_S
    while not done():
        if time.monotonic() > end_s:
            sys.exit(f"waited {WAIT_S} s for {what}")
        time.sleep(0.05)


def measure_run(tracing: Tracing) -> Iterable[Journey]:
    """Measure the journeys of one run on this machine."""
    run = tracing.start("run", "--workers=1:3", "--start=2", "--name=one", str(tracing.script), "100000")
    try:
        wait_until(lambda: tracing.count_steps("one") > MARKED_STEP + 5, "the first steps")
        begin, quiet_s = time.monotonic_ns(), 4
        time.sleep(quiet_s)
        quiet = (begin, time.monotonic_ns())
        spans = {}
        spans["a resize request until the new generation"] = timed(
            lambda: tracing.call("resize", "one", "3", "--wait")
        )
        spans["a checkpoint's bytes until the manifest"] = timed(
            lambda: tracing.call("checkpoint", "now", "one", "--wait")
        )
        rows = json.loads(tracing.call("ps", "one", "--json"))
        [victim, *_] = [row["pid"] for row in rows if row["role"] == "worker"]
        spans["a death until its part is computed again"] = timed(lambda: kill(tracing, victim))
        tracing.call("stop", "one")
        run.wait(WAIT_S)
    finally:
        run.kill()
        run.wait()
    entries = tracing.read()
    marks = [entry for entry in entries if entry.place == "mark"]
    begins = min(entry.time_ns for entry in marks if entry.function == "backward")
    ends = max(entry.time_ns for entry in marks if entry.function == "committed")
    yield summarize("a gradient until its sum is committed", entries, (begins, ends))
    usual = {entry.place for entry in cut(entries, quiet)}
    for name, span in spans.items():
        yield summarize(name, entries, span, without=usual)


def kill(tracing: Tracing, pid: int) -> None:
    before = tracing.count_steps("one")
    os.kill(pid, signal.SIGKILL)
    events = tracing.home / "runs" / "one" / "events.jsonl"
    wait_until(lambda: '"worker.died"' in events.read_text(), "the death to be noticed")
    wait_until(lambda: tracing.count_steps("one") >= before + 3, "steps after the death")


def measure_cluster(tracing: Tracing) -> Iterable[Journey]:
    """Measure the journeys of a job."""
    tracing.call("up", "--detach", "--listen=127.0.0.1:0")
    try:
        before = len(find_marks(tracing, "script"))
        begin = time.monotonic_ns()
        for number in range(4):
            variables = ("PYTHONPATH", "ELASTANE_JOURNEYS")
            traced = [f"--env={name}={tracing.environment[name]}" for name in variables]
            named = ("--workers=1:2", f"--name=job{number}", *traced)
            tracing.call("submit", *named, str(tracing.script), "--", "100000")
            if number == 0:
                wait_until(lambda: len(find_marks(tracing, "script")) > before, "the job's script")
                end = find_marks(tracing, "script")[before].time_ns
        time.sleep(5)
        for number in range(4):
            tracing.call("cancel", f"job{number}", "--wait")
    finally:
        tracing.call("down")
    entries = tracing.read()
    submission = summarize("a job submitted until its worker starts", entries, (begin, end))
    yield submission
    yield read_way(tracing.tree, submission)
    yield max(find_plans(entries), key=lambda journey: journey.hops)


def read_way(tree: Path, traced: Journey) -> Journey:
    """Return the files that a reader has to open to follow a job, as its page lists them.

    Raises:
        SystemExit: the traced job has not passed one of them.
    """
    way = tuple(re.findall(r"^\| \d+ \| `([\w/]+\.py)` \|", (tree / WAY).read_text(), re.MULTILINE))
    if missed := sorted(set(way) - set(traced.files)):
        sys.exit(f"{WAY} names {', '.join(missed)}, which the job has not passed")
    return Journey("the same, files to open", way, len(way) - 1)


def find_marks(tracing: Tracing, name: str) -> list[Entry]:
    return [entry for entry in tracing.read() if entry.place == "mark" and entry.function == name]


def find_plans(entries: list[Entry]) -> Iterable[Journey]:
    """Yield a journey for each call of the scheduler, in its own thread only."""
    begun: dict[tuple[str, str], int] = {}
    for entry in entries:
        if entry.place == "plan" and entry.function == "begins":
            begun[entry.thread] = entry.time_ns
        elif entry.place == "plan" and entry.thread in begun:
            span = (begun.pop(entry.thread), entry.time_ns)
            own = [other for other in cut(entries, span) if other.thread == entry.thread]
            yield summarize("plan(snapshot)", own, span)


def timed(act: Callable[[], object]) -> tuple[int, int]:
    begin = time.monotonic_ns()
    act()
    return begin, time.monotonic_ns()


def cut(entries: Iterable[Entry], span: tuple[int, int]) -> list[Entry]:
    return [entry for entry in entries if span[0] <= entry.time_ns <= span[1]]


def summarize(
    name: str, entries: Iterable[Entry], span: tuple[int, int], without: Iterable[str] = ()
) -> Journey:
    """Count files and hops in a span, without some files."""
    left_out = {"mark", "plan", *without}
    found = [entry for entry in cut(entries, span) if entry.place not in left_out]
    return Journey(name, tuple(sorted({entry.place for entry in found})), len(found))


def main() -> None:
    """Measure a tree and print a row per journey."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tree", type=Path, default=ROOT, help="the working tree to measure")
    parser.add_argument("--list", action="store_true", help="print the files of each journey")
    options = parser.parse_args()
    print("| journey | files | hops |\n|---|--:|--:|")
    for measure in (measure_run, measure_cluster):
        with tempfile.TemporaryDirectory(prefix="elastane-journeys-", ignore_cleanup_errors=True) as home:
            for journey in measure(Tracing(options.tree.resolve(), Path(home))):
                print(f"| {journey.name} | {len(journey.files)} | {journey.hops} |", flush=True)
                if options.list:
                    print("".join(f"    {place}\n" for place in journey.files))


if __name__ == "__main__":
    main()
