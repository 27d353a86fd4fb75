"""A pilot as a program: its options, its report, and the end of its processes on Ctrl-C."""

import argparse
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from elastane.common.errors import ElastaneError

from pilot.checks import Check
from pilot.scenario import Scenario, read_scenario

INTERRUPTED = 130
BUSY = 0.7
"""The load average of the last minute beyond which other programs slow down starts."""


def run_program(
    about: str, default: Path, out: Path, run_pilot: Callable[[Scenario, Path, Path], bool]
) -> int:
    """Run a pilot with the options of the command line; return its exit code.

    Args:
        about: the description of the program.
        default: the scenario that is played if none is given.
        out: the folder for its report if none is given.
        run_pilot: plays a scenario, with its files in a folder, writes the report into another one, and
            returns whether all checks passed.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("scenario", type=Path, nargs="?", default=default)
    parser.add_argument("--out", type=Path, default=out, help="the folder for report.html and report.json")
    parser.add_argument("--keep", action="store_true", help="keep the stores, run directories and logs")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    folder = Path(tempfile.mkdtemp(prefix="elastane-pilot-"))
    try:
        good = run_pilot(read_scenario(options.scenario), folder, options.out)
    except KeyboardInterrupt:
        print(f"interrupted: all processes have ended; kept: {folder}")
        return INTERRUPTED
    except (ElastaneError, TimeoutError) as error:
        print(f"{error}\nkept: {folder}")
        return 1
    if good and not options.keep:
        shutil.rmtree(folder)
    else:
        print(f"kept: {folder}")
    return 0 if good else 1


def interrupt(*_: object) -> None:
    """Interrupt once: a second Ctrl-C must not stop the pilot while it ends its processes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def print_beginning(text: str) -> None:
    """Print what begins, and warn if other programs are busy."""
    print(text, flush=True)
    if (load := os.getloadavg()[0]) > BUSY:
        print(f"other programs use this machine (load {load:.1f}), so the figures will be misleading")


def print_progress(arm: str, text: str) -> None:
    print(f"{arm:8}{text}", flush=True)


def publish(
    out: Path, results: Mapping[str, Any], page: str, tables: Sequence[str], checks: Sequence[Check]
) -> bool:
    """Write a report, and print its tables and checks; return whether all checks passed."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "report.html").write_text(page)
    for table in tables:
        print(f"\n{table}")
    print()
    for check in checks:
        print("yes" if check.good else "NO ", check.text, sep="  ")
    print(f"\n{out / 'report.html'}, {out / 'report.json'}")
    return all(check.good for check in checks)
