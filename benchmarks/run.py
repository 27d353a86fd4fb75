"""Measure Elastane, plain PyTorch, DDP and torchrun in one go on this machine.

Writes ``benchmarks/results/<machine>.json`` and renders ``docs/benchmarks.md`` from it. Appends each
measurement to ``benchmarks/results/<machine>.jsonl``, with its date and commit, so that the next one does not
overwrite it. ``--quick`` writes into ``build/benchmarks`` instead: its numbers only serve to try the harness.
"""

import argparse
import json
import shutil
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
from page import render_page
from processes import exit_on_sigterm

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
    exit_on_sigterm()
    root = HERE.parent
    results = HERE / "results" / f"{machine.make_file_name()}.json"
    page = root / "docs" / "benchmarks.md"
    if options.quick:
        results = root / "build" / "benchmarks" / results.name
        page = results.with_name("benchmarks.md")
    results.parent.mkdir(parents=True, exist_ok=True)
    flags = [*(["--quick"] if options.quick else []), *(f"--only={name}" for name in options.only or [])]
    before = json.loads(results.read_text()) if results.exists() and options.only else {}
    whole: dict[str, Any] = {
        "machine": machine.describe(),
        "taken": before.get("taken", {}),
        "measurements": before.get("measurements", {}),
    }
    # Written after each measurement, so that a failure in the last minute does not lose an hour.
    for name in options.only or list(MEASUREMENTS):
        begin_s = time.monotonic()
        whole["measurements"][name] = measure(name, quick=options.quick)
        whole["taken"][name] = {
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
            "minutes": round((time.monotonic() - begin_s) / 60, 2),
            "command": " ".join(["python benchmarks/run.py", *flags]),
            "elastane": machine.describe_commit(),
        }
        append_to_history(results.with_suffix(".jsonl"), name, whole)
        results.write_text(json.dumps(whole, indent=1) + "\n")
        page.write_text(render_page(whole, str(results.relative_to(root))))
    print(f"wrote {results} and {page}")


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


def measure(name: str, *, quick: bool) -> dict[str, Any]:
    """Make the named measurement in a folder that is removed after success."""
    work = Path(tempfile.mkdtemp(prefix=f"elastane-{name}-"))
    begin_s = time.monotonic()
    print(f"{name}: measuring (logs in {work})", flush=True)
    found = MEASUREMENTS[name](setting.make_quick(work) if quick else setting.make_full(work))
    print(f"{name}: {time.monotonic() - begin_s:.0f} s", flush=True)
    shutil.rmtree(work)
    return found


if __name__ == "__main__":
    main()
