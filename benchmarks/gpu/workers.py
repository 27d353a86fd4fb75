"""Measure two to four workers on one GPU: bytes and speed of their sums, and the pause after a ``kill -9``.

Each number of workers trains `train_sums.py` with rooms, and two workers once more with copies on the host.
In one run of three a worker is killed in the middle; the pause is the longest time between two committed
steps from then on, less that of a usual step.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

SCRIPT = Path(__file__).with_name("train_sums.py")
ELASTANE = [sys.executable, "-P", "-m", "elastane"]
POLL_S = 0.02
SMALL = ["--parameters=40000", "--width=64"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    rows = []
    for row in measure(SMALL if options.small else []):
        rows.append(row)
        print(json.dumps(row), flush=True)
        # The limit may end this process at any moment.
        if options.json:
            options.json.write_text(json.dumps(rows))


def measure(arguments: list[str]) -> Iterator[dict[str, Any]]:
    yield measure_sums(2, arguments, rooms=True)
    yield measure_death(3, arguments)
    yield measure_sums(2, arguments, rooms=False)
    for workers in (4, 3):
        yield measure_sums(workers, arguments, rooms=True)


def begin(
    folder: Path, workers: int, arguments: list[str], *, rooms: bool, steps: int
) -> tuple[subprocess.Popen[bytes], Path]:
    """Begin a run in a folder; return its process and its ledger."""
    command = [
        *(*ELASTANE, "run", f"--workers={workers}:{workers}", "--name=measured"),
        *(str(SCRIPT), f"--out={folder}", f"--steps={steps}", *arguments, *(["--rooms"] if rooms else [])),
    ]
    environment = os.environ | {"ELASTANE_HOME": str(folder / "home"), "ELASTANE_ROOMS": str(int(rooms))}
    process = subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL)
    return process, folder / "home" / "runs" / "measured" / "ledger.jsonl"


def read_lines(ledger: Path) -> list[dict[str, Any]]:
    text = ledger.read_text() if ledger.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def measure_sums(workers: int, arguments: list[str], *, rooms: bool) -> dict[str, Any]:
    """Train, and return the bytes and the speed of sums."""
    with TemporaryDirectory() as folder:
        process, ledger = begin(Path(folder), workers, arguments, rooms=rooms, steps=20)
        if code := process.wait():
            raise RuntimeError(f"the run of {workers} workers ended with code {code}")
        figures = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
        lines = read_lines(ledger)
    read = sum(each["read_bytes_a_step"] for each in figures) / workers
    busy_s = sum(each["reads_s_a_step"] for each in figures) / workers
    return {
        "workers": workers,
        "rooms": rooms,
        "used_rooms": all(each["rooms"] for each in figures),
        "gradient_mb": figures[0]["gradient_bytes"] / 1e6,
        "read_mb_a_worker_and_step": read / 1e6,
        "times_the_gradient": round(read / figures[0]["gradient_bytes"], 3),
        "host_bytes": max(each["host_bytes"] for each in figures),
        "gb_per_s_of_a_worker": round(read / busy_s / 1e9, 2) if busy_s else None,
        "step_ms": round(1e3 * find_usual_s(lines), 2),
    }


def find_usual_s(lines: list[dict[str, Any]]) -> float:
    times = [line["time"] for line in lines[len(lines) // 4 :]]
    return float(median(after - before for before, after in pairwise(times)))


def measure_death(workers: int, arguments: list[str]) -> dict[str, Any]:
    """Kill one worker, and return the pause."""
    with TemporaryDirectory() as folder:
        process, ledger = begin(Path(folder), workers, arguments, rooms=True, steps=400)
        try:
            while len(lines := read_lines(ledger)) < 40:
                if process.poll() is not None:
                    raise RuntimeError(f"the run ended after {len(lines)} steps")
                time.sleep(POLL_S)
            asked = subprocess.run(
                [*ELASTANE, "ps", str(ledger.parent), "--json"], check=True, capture_output=True
            )
            pids = {row["worker"]: row["pid"] for row in json.loads(asked.stdout) if row["role"] == "worker"}
            before = read_lines(ledger)
            killed = time.time()
            os.kill(pids[1], signal.SIGKILL)
            while not (lines := read_lines(ledger)) or lines[-1]["generation"] == before[-1]["generation"]:
                if process.poll() is not None:
                    raise RuntimeError("the run ended before it went on without the dead worker")
                time.sleep(POLL_S)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()
    times = [line["time"] for line in lines]
    pause_s = max(after - begun for begun, after in pairwise(times) if after > killed)
    usual_s = find_usual_s(before)
    return {
        "workers": workers,
        "killed": 1,
        "usual_step_ms": round(1e3 * usual_s, 2),
        "longest_step_ms": round(1e3 * pause_s, 1),
        "pause_ms": round(1e3 * (pause_s - usual_s), 1),
    }


if __name__ == "__main__":
    main()
