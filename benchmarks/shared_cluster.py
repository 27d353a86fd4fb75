"""Run a small shared cluster twice: with elastic jobs, and with the same jobs of a fixed size.

Controller, API, engine, agents and workers are real. The devices and the users are simulated: the devices are
slower than this machine's cores, so that a dozen fit on two, and the users follow a scenario. ``make pilot``
runs it.
"""

import sys
from functools import partial
from pathlib import Path

from elastane.cluster.nouns.jobs import JobSpec

import machine
from pilot.arm import play
from pilot.checks import check_arms
from pilot.figures import compute_figures
from pilot.page import render_page
from pilot.program import print_beginning, print_progress, publish, run_program
from pilot.proof import compare_with_references
from pilot.results import build_results
from pilot.scenario import Scenario, fix_size
from pilot.words import build_rows, format_table

SCENARIO = Path(__file__).parent / "pilot" / "shared.yaml"


def keep_elastic(spec: JobSpec, _ideal: int) -> JobSpec:
    return spec


SHAPES = {"elastic": keep_elastic, "fixed": fix_size}


def run_pilot(scenario: Scenario, folder: Path, out: Path) -> bool:
    """Run, measure, prove and record a scenario; return whether all checks passed."""
    print_beginning(f"{scenario.name}: {len(scenario.jobs)} jobs, first elastic, then of a fixed size")
    arms = [
        play(scenario, name, folder / name, shape, partial(print_progress, name))
        for name, shape in SHAPES.items()
    ]
    print("now the reference run of each job, to compare the bytes", flush=True)
    equal = compare_with_references(scenario, arms, folder / "reference")
    figures = {arm.name: compute_figures(arm, scenario) for arm in arms}
    checks = check_arms(scenario, arms, figures, equal)
    about = machine.describe()
    results = build_results(scenario, arms, figures, checks, about)
    page = render_page(scenario, arms, figures, checks, about)
    return publish(out, results, page, [format_table(build_rows(figures))], checks)


if __name__ == "__main__":
    sys.exit(run_program(__doc__.splitlines()[0] if __doc__ else "", SCENARIO, Path("pilot"), run_pilot))
