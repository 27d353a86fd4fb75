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

from elastane.api.errors import ElastaneError
from elastane.api.jobs import JobSpec

import machine
from pilot.arm import live
from pilot.checks import checks_of
from pilot.figures import figures_of
from pilot.page import page
from pilot.proof import compared
from pilot.results import results_of
from pilot.scenario import Scenario, fixed, read_scenario
from pilot.words import table

SCENARIO = Path(__file__).parent / "pilot" / "shared.yaml"
INTERRUPTED = 130
BUSY = 0.7
"""Load average of the last minute beyond which other processes slow down starts."""


def stretching(spec: JobSpec, _ideal: int) -> JobSpec:
    return spec


SHAPES = {"elastic": stretching, "fixed": fixed}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("scenario", type=Path, nargs="?", default=SCENARIO)
    parser.add_argument(
        "--out", type=Path, default=Path("pilot"), help="folder for report.html and report.json"
    )
    parser.add_argument("--keep", action="store_true", help="keep stores, run directories and logs")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupted)
    folder = Path(tempfile.mkdtemp(prefix="elastane-pilot-"))
    try:
        good = piloted(read_scenario(options.scenario), folder, options.out)
    except KeyboardInterrupt:
        print(f"interrupted; everything it had started has ended; kept: {folder}")
        return INTERRUPTED
    except (ElastaneError, TimeoutError) as error:
        print(f"{error}\nkept: {folder}")
        return 1
    if good and not options.keep:
        shutil.rmtree(folder)
    else:
        print(f"kept: {folder}")
    return 0 if good else 1


def piloted(scenario: Scenario, folder: Path, out: Path) -> bool:
    """Run, measure, prove and record a scenario; return whether all checks passed."""
    print(f"{scenario.name}: {len(scenario.jobs)} jobs, first elastic, then of a fixed size", flush=True)
    if (load := os.getloadavg()[0]) > BUSY:
        print(f"this machine is busy with something else (load {load:.1f}): the figures will mislead")
    arms = [live(scenario, name, folder / name, shape, partial(said, name)) for name, shape in SHAPES.items()]
    print("now each job in peace, to compare the bytes with", flush=True)
    equal = compared(scenario, arms, folder / "quiet")
    figures = {arm.name: figures_of(arm, scenario) for arm in arms}
    checks = checks_of(scenario, arms, figures, equal)
    about = machine.described()
    out.mkdir(parents=True, exist_ok=True)
    results = results_of(scenario, arms, figures, checks, about)
    (out / "report.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "report.html").write_text(page(scenario, arms, figures, checks, about))
    print(f"\n{table(figures)}\n")
    for check in checks:
        print("yes" if check.good else "NO ", check.text, sep="  ")
    print(f"\n{out / 'report.html'}, {out / 'report.json'}")
    return all(check.good for check in checks)


def interrupted(*_: object) -> None:
    """Interrupt once; a second Ctrl-C must not keep the pilot from ending its processes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def said(arm: str, text: str) -> None:
    print(f"{arm:8}{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
