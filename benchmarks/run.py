"""Measure Elastane, plain PyTorch, DDP and torchrun in one go on this machine.

Writes ``benchmarks/results/<machine>.json`` and draws ``docs/benchmarks.md`` from it. Appends each
measurement to ``benchmarks/results/<machine>.jsonl``, with its date and commit, so that the next one does not
overwrite it. ``--quick`` writes into ``build/benchmarks`` instead: its numbers only serve to try the harness.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import auto
import checkpoint_cost
import checkpoint_files
import coordinator_death
import death
import floors
import join
import leave
import loading
import machine
import memory
import restart
import restore
import setting
import usual_step
from job import HERE
from page import page
from processes import end_in_order_on_sigterm

MEASUREMENTS: dict[str, Callable[[setting.Setting], dict[str, Any]]] = {
    "usual_step": usual_step.measure,
    "join": join.measure,
    "leave": leave.measure,
    "death": death.measure,
    "coordinator_death": coordinator_death.measure,
    "checkpoint_cost": checkpoint_cost.measure,
    "checkpoint_files": checkpoint_files.measure,
    "restore": restore.measure,
    "auto": auto.measure,
    "loading": loading.measure,
    "memory": memory.measure,
    "floors": floors.measure,
    "restart": restart.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and short, to try the harness")
    parser.add_argument(
        "--only", action="append", choices=list(MEASUREMENTS), help="this one; may be repeated"
    )
    options = parser.parse_args()
    end_in_order_on_sigterm()
    root = HERE.parent
    results = HERE / "results" / f"{machine.file_name()}.json"
    drawn = root / "docs" / "benchmarks.md"
    if options.quick:
        results = root / "build" / "benchmarks" / results.name
        drawn = results.with_name("benchmarks.md")
    results.parent.mkdir(parents=True, exist_ok=True)
    flags = [*(["--quick"] if options.quick else []), *(f"--only={name}" for name in options.only or [])]
    before = json.loads(results.read_text()) if results.exists() and options.only else {}
    whole: dict[str, Any] = {
        "machine": machine.described(),
        "taken": before.get("taken", {}),
        "measurements": before.get("measurements", {}),
    }
    # Written after each measurement, so that a failure in the last minute does not lose an hour.
    for name in options.only or list(MEASUREMENTS):
        begin_s = time.monotonic()
        whole["measurements"][name] = measured(name, quick=options.quick)
        whole["taken"][name] = {
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
            "minutes": round((time.monotonic() - begin_s) / 60, 2),
            "command": " ".join(["python benchmarks/run.py", *flags]),
            "elastane": commit(),
        }
        append_to_history(results.with_suffix(".jsonl"), name, whole)
        results.write_text(json.dumps(whole, indent=1) + "\n")
        drawn.write_text(page(whole, str(results.relative_to(root))))
    print(f"wrote {results} and {drawn}")


def append_to_history(history: Path, name: str, whole: dict[str, Any]) -> None:
    """Append a measurement as one line, with its machine and time."""
    line = {
        "name": name,
        **whole["taken"][name],
        "machine": whole["machine"],
        "measurement": whole["measurements"][name],
    }
    with history.open("a") as file:
        file.write(json.dumps(line) + "\n")


def commit() -> str:
    """Return the commit of the measured code, with a plus if the code has changed since."""
    asked = ["git", "-C", str(HERE), "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(asked, check=False, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def measured(name: str, *, quick: bool) -> dict[str, Any]:
    """Make the named measurement in a folder that is removed after success."""
    work = Path(tempfile.mkdtemp(prefix=f"elastane-{name}-"))
    begin_s = time.monotonic()
    print(f"{name}: measuring (logs in {work})", flush=True)
    found = MEASUREMENTS[name](setting.quick(work) if quick else setting.full(work))
    print(f"{name}: {time.monotonic() - begin_s:.0f} s", flush=True)
    shutil.rmtree(work)
    return found


if __name__ == "__main__":
    main()
