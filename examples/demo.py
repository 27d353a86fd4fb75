"""Train while workers join, die and leave; train again undisturbed; compare the bytes.

The demo uses the command line and shows each command. The kills are real signals to real processes. A seed
draws their times; the demo prints it, and `--seed` repeats it. Each part of the story begins with the time
since the start of the demo; in a terminal, a bar shows the steps of the run.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

STEPS = 130
TRAINING = [str(Path(__file__).parent / "lm" / "train.py"), f"--steps={STEPS}", "--evaluate-every=65"]
SHARE = 4
"""A wait between two disturbances takes at most this part of the remaining steps, so that some are left."""
PARTS = (
    (
        "Train on one worker; two join, one is killed, the coordinator is killed, one worker is drained",
        "75 s",
    ),
    ("Train again, undisturbed, on one worker", "100 s"),
    ("Compare both runs, bit for bit", "5 s"),
)
"""The parts of the demo, and about how long each takes on two cores."""
console = Console(highlight=False)
started_s = time.monotonic()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seed",
        type=int,
        default=random.SystemRandom().randrange(10_000),
        help="draws the times of the kills",
    )
    seed = parser.parse_args().seed
    home = Path(tempfile.mkdtemp(prefix="elastane-demo-"))
    os.environ["ELASTANE_HOME"] = str(home)
    console.print(f"A small GPT learns the source of Python's standard library. Seed: {seed}")
    console.print("Three minutes on two cores:\n")
    for number, (part, duration) in enumerate(PARTS, 1):
        console.print(f"  {number}. {part} ({duration})")
    say("Part 1 of 3. The training begins on one worker:")
    code = train_disturbed(random.Random(seed), home / "runs" / "stormy")
    if code != 0:
        return code
    say("Part 2 of 3. The same training, undisturbed, on one worker:")
    reference = start("run", "--name=reference", "--workers=1:1", *TRAINING)
    with show_steps(reference, home / "runs" / "reference"):
        print_output(reference)
    say("Part 3 of 3. Was every sample trained on exactly once, and are the two runs the same?")
    sound = elastane("verify", "stormy")
    same = elastane("verify", "stormy", "reference")
    say("How long the other workers paused:")
    console.print(tabulate_pauses(home / "runs" / "stormy"))
    console.print(f"\nThe report, for a browser: {home / 'runs' / 'stormy' / 'report.html'}")
    console.print(f"Remove it all with: rm -r {home}")
    return sound or same


def train_disturbed(rng: random.Random, run_dir: Path) -> int:
    """Train, disturb the run, wait until it ends, and return its exit code."""
    run = start("run", "--name=stormy", "--workers=1:3", "--start=1", *TRAINING)
    printer = threading.Thread(target=print_output, args=(run,))
    printer.start()
    try:
        with show_steps(run, run_dir):
            disturb(rng, run, run_dir)
            return run.wait()
    finally:
        if run.poll() is None:
            run.send_signal(signal.SIGKILL)
        run.wait()
        printer.join()


def disturb(rng: random.Random, run: "subprocess.Popen[str]", run_dir: Path) -> None:
    """Let workers join, die and leave, and kill the coordinator."""
    wait_for_steps(rng.randint(8, 14), run, run_dir)
    say("Two workers join:")
    elastane("resize", "stormy", "3", "--wait")
    wait_for_steps(rng.randint(12, 20), run, run_dir)
    time.sleep(rng.random() * measure_usual_step(run_dir))
    say("A worker is killed in the middle of a step; a new one will take its place:")
    kill("worker", rng)
    wait_for_steps(rng.randint(12, 20), run, run_dir)
    time.sleep(rng.random() * measure_usual_step(run_dir))
    say("The coordinator is killed:")
    kill("coordinator", rng)
    wait_for_steps(rng.randint(8, 12), run, run_dir)
    leaver = rng.choice([row for row in list_processes() if row["role"] == "worker"])["worker"]
    say(f"Worker {leaver} is drained:")
    if elastane("drain", "stormy", str(leaver), "--wait") != 0:
        sys.exit(f"worker {leaver} was not drained; {count_steps(run_dir)} of {STEPS} steps are made")


def tabulate_pauses(run_dir: Path) -> Table:
    """Tabulate the pause of the other workers at each event."""
    events = read_lines(run_dir / "events.jsonl")
    steps = {line["step"]: line["seconds"]["step"] for line in read_lines(run_dir / "ledger.jsonl")}
    table = Table("event", "at step", "longest pause of a healthy worker", "in usual steps")
    for event in events:
        if event["kind"] == "generation.started" and event.get("pause_ms"):
            pause_ms, usual = max(event["pause_ms"].values()), max(event["pause_steps"].values())
            table.add_row(event["why"], str(event["step"]), f"{pause_ms:.0f} ms", f"{usual:.2f}")
        elif event["kind"] == "coordinator.died":
            near = [
                line["step"] for line in read_lines(run_dir / "ledger.jsonl") if line["time"] >= event["time"]
            ]
            first = min(near, default=len(steps))
            usual_s = statistics.median(steps[step] for step in range(max(2, first - 8), first))
            longest_s = max(steps.get(step, 0.0) for step in range(first, first + 3))
            pause_s = max(0.0, longest_s - usual_s)
            row = (str(first), f"{1e3 * pause_s:.0f} ms", f"{pause_s / usual_s:.2f}")
            table.add_row("the coordinator dies", *row)
    return table


def say(text: str) -> None:
    """Begin a part of the story, with the time since the start of the demo."""
    minutes, seconds = divmod(int(time.monotonic() - started_s), 60)
    console.rule(style="dim")
    console.print(f"[dim]{minutes}:{seconds:02}[/dim]  [bold]{text}[/bold]\n")


@contextlib.contextmanager
def show_steps(run: "subprocess.Popen[str]", run_dir: Path) -> Iterator[None]:
    """Show a bar with the steps of a run until it ends; only in a terminal."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("steps", total=STEPS)

        def follow() -> None:
            while run.poll() is None and not bar.finished:
                bar.update(task, completed=count_steps(run_dir))
                time.sleep(0.5)

        if console.is_terminal:
            threading.Thread(target=follow, daemon=True).start()
        yield


def start(*arguments: str) -> "subprocess.Popen[str]":
    console.print("[cyan]$ elastane " + " ".join(arguments))
    command = [sys.executable, "-m", "elastane.cli.main", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def print_output(run: "subprocess.Popen[str]") -> None:
    for line in run.stdout or ():
        console.print(line.rstrip(), markup=False)


def elastane(*arguments: str) -> int:
    run = start(*arguments)
    print_output(run)
    return run.wait()


def list_processes() -> list[dict[str, Any]]:
    """Return the rows of ``elastane ps``."""
    command = [sys.executable, "-m", "elastane.cli.main", "ps", "stormy", "--json"]
    rows: list[dict[str, Any]] = json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    )
    return rows


def kill(role: str, rng: random.Random) -> None:
    """Kill one of the processes with this role by ``kill -9``."""
    rows = [row for row in list_processes() if row["role"] == role and row["state"] != "standby"]
    pid = rng.choice(rows)["pid"]
    console.print(f"[cyan]$ kill -9 {pid}")
    os.kill(pid, signal.SIGKILL)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a file that may still grow."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def count_steps(run_dir: Path) -> int:
    return len(read_lines(run_dir / "ledger.jsonl"))


def measure_usual_step(run_dir: Path) -> float:
    return statistics.median(
        float(line["seconds"]["step"]) for line in read_lines(run_dir / "ledger.jsonl")[-8:]
    )


def wait_for_steps(number: int, run: "subprocess.Popen[str]", run_dir: Path) -> None:
    """Wait for this number of steps, or for fewer if few remain; exit if the run ends first."""
    done = count_steps(run_dir)
    step = done + min(number, (STEPS - done) // SHARE)
    while count_steps(run_dir) < step:
        if run.poll() is not None:
            sys.exit(f"the run ended before step {step}, with exit code {run.returncode}")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
