"""Let three owners train one model on data that must not leave them, while they leave and return.

Controller, API, agents, workers, training and kills are real; each owner is a pool with a site of its own.
The machines are processes of this one that share neither directories nor memory, and their devices are slow,
as in ``shared_cluster.py``. The scenario withdraws and returns an owner's devices, kills a machine and
changes a price. Then the run is repeated by one machine that may read all data, and its bytes are compared.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import read_run

import machine
from agent_engine import ProcessEngine, run_controller
from pilot.arm import play
from pilot.figures import compute_figures
from pilot.owners import check_owners, compute_owner_figures, list_changes, list_price_effects
from pilot.owners_page import build_owner_rows, build_price_rows, describe_price, render_owners
from pilot.program import print_beginning, print_progress, publish, run_program
from pilot.proof import is_equal, is_proved, train_reference
from pilot.results import build_results
from pilot.scenario import Scenario
from pilot.words import format_table
from shared_cluster import keep_elastic

SCENARIO = Path(__file__).parent / "pilot" / "three_owners.yaml"
ARM = "owners"


def run_pilot(scenario: Scenario, folder: Path, out: Path) -> bool:
    """Run, repeat, prove and record a scenario of one job; return whether all checks passed."""
    (submission,) = scenario.jobs
    pools = scenario.cluster.pools or ()
    print_beginning(f"{scenario.name}: {', '.join(pool.name for pool in pools)}")
    engine = ProcessEngine(folder / "agents", apart=True)
    start = partial(run_controller, engine=engine)
    say = partial(print_progress, ARM)
    arm = play(scenario, ARM, folder / ARM, keep_elastic, say, start, engine.kill)
    run = read_run(arm.run_dir(submission.name))
    print("now one machine repeats the run, to compare the bytes", flush=True)
    reference = RunDir(folder / "reference" / submission.name)
    sites = ",".join(pool.site for pool in pools)
    repeats = (f"--from={run.run_dir.root}@0", f"--site={sites}")
    equal = train_reference(scenario, submission, reference, repeats) and is_equal(run.run_dir, reference)

    played = msgspec.structs.replace(scenario, events=arm.played)
    figures = compute_figures(arm, played)
    rank_sites = () if run.record.pinned is None else run.record.pinned.rank_sites
    owners = {
        pool.name: compute_owner_figures(pool.name, run.ledger, rank_sites, arm.usage) for pool in pools
    }
    effects = list_price_effects(arm, scenario)
    checks = check_owners(played, arm, figures, run.ledger, proved=is_proved(run.run_dir), equal=equal)

    changes = list_changes(run.events, arm.began_s)
    actions = sorted((*arm.actions, *changes), key=lambda action: action.at_s)
    arm = msgspec.structs.replace(arm, actions=tuple(actions))
    about = machine.describe()
    outcome = next((event.why for event in reversed(run.events) if event.kind == "message"), "")
    page = render_owners(played, arm, run.ledger, owners, effects, checks, about, outcome=outcome)
    results: dict[str, Any] = {
        **build_results(played, [arm], {ARM: figures}, checks, about),
        "owners": msgspec.to_builtins(owners),
        "prices": msgspec.to_builtins(effects),
        "losses": [(line.time - arm.began_s, line.loss, line.absent) for line in run.ledger],
        "outcome": outcome,
    }
    tables = [format_table(build_owner_rows(owners))]
    for effect in effects:
        tables += [describe_price(effect), format_table(build_price_rows(effect))]
    return publish(out, results, page, [*tables, outcome], checks)


if __name__ == "__main__":
    about = __doc__.splitlines()[0] if __doc__ else ""
    sys.exit(run_program(about, SCENARIO, Path("pilot-owners"), run_pilot))
