"""Run a small shared cluster twice: with elastic jobs, and with the same jobs of a fixed size.

Controller, API, engine, agents and workers are real. The devices and the users are simulated: the devices are
slower than this machine's cores, so that a dozen fit on two, and the users follow a scenario. ``make pilot``
runs it.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

from elastane.cluster.nouns.jobs import JobSpec
from elastane.common.errors import ElastaneError

import machine
from pilot.arm import play
from pilot.checks import check_arms
from pilot.figures import compute_figures
from pilot.page import render_page
from pilot.proof import compare_with_references
from pilot.results import build_results
from pilot.scenario import Scenario, fix_size, read_scenario
from pilot.words import format_table

SCENARIO = Path(__file__).parent / "pilot" / "shared.yaml"
INTERRUPTED = 130
BUSY = 0.7
"""The load average of the last minute beyond which other programs slow down starts."""


def keep_elastic(spec: JobSpec, _ideal: int) -> JobSpec:
    return spec


SHAPES = {"elastic": keep_elastic, "fixed": fix_size}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("scenario", type=Path, nargs="?", default=SCENARIO)
    parser.add_argument(
        "--out", type=Path, default=Path("pilot"), help="the folder for report.html and report.json"
    )
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


def run_pilot(scenario: Scenario, folder: Path, out: Path) -> bool:
    """Run, measure, prove and record a scenario; return whether all checks passed."""
    print(f"{scenario.name}: {len(scenario.jobs)} jobs, first elastic, then of a fixed size", flush=True)
    if (load := os.getloadavg()[0]) > BUSY:
        print(f"other programs use this machine (load {load:.1f}), so the figures will be misleading")
    arms = [
        play(scenario, name, folder / name, shape, partial(print_progress, name))
        for name, shape in SHAPES.items()
    ]
    print("now the reference run of each job, to compare the bytes", flush=True)
    equal = compare_with_references(scenario, arms, folder / "reference")
    figures = {arm.name: compute_figures(arm, scenario) for arm in arms}
    checks = check_arms(scenario, arms, figures, equal)
    about = machine.describe()
    out.mkdir(parents=True, exist_ok=True)
    results = build_results(scenario, arms, figures, checks, about)
    (out / "report.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "report.html").write_text(render_page(scenario, arms, figures, checks, about))
    print(f"\n{format_table(figures)}\n")
    for check in checks:
        print("yes" if check.good else "NO ", check.text, sep="  ")
    print(f"\n{out / 'report.html'}, {out / 'report.json'}")
    return all(check.good for check in checks)


def interrupt(*_: object) -> None:
    """Interrupt once: a second Ctrl-C must not stop the pilot while it ends its processes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def print_progress(arm: str, text: str) -> None:
    print(f"{arm:8}{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
