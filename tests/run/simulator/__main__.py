"""``python -m tests.run.simulator``: play thousands of histories.

The program prints a history that breaks a promise with its transcript; the seed repeats the history exactly.
"""

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Annotated

import typer

from tests.run.simulator.checkers import Unchecked, Violation
from tests.run.simulator.faults import HistoryPlan, add_checkpoints, add_slow_reads, draw_plan, draw_storm
from tests.run.simulator.gang_plans import draw_gangs
from tests.run.simulator.history import History, continue_run
from tests.run.simulator.network_plans import draw_network
from tests.run.simulator.node_losses import draw_node_losses
from tests.run.simulator.node_plans import draw_leaving_nodes, draw_nodes, draw_outages
from tests.run.simulator.nodes_history import NodesHistory
from tests.run.simulator.site_plans import draw_node_skips, draw_skips, draw_waits
from tests.run.simulator.spot_check_plans import draw_spot_checks

LAYOUTS: tuple[int | None, ...] = (None, 1, 2, 3)


def print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def main(
    seed: Annotated[int, typer.Option(help="First seed.")] = 0,
    histories: Annotated[int, typer.Option(help="Number of histories per number of copies.")] = 1000,
    copies: Annotated[str, typer.Option(help="all, 1, 2, 3 or every.")] = "every",
    transcript: Annotated[bool, typer.Option(help="Print the transcript of every history.")] = False,
    network: Annotated[bool, typer.Option("--network", help="Play histories with network faults.")] = False,
    nodes: Annotated[bool, typer.Option("--nodes", help="Play histories on several nodes.")] = False,
    storm: Annotated[bool, typer.Option("--storm", help="Play histories with faults all the time.")] = False,
    node_losses: Annotated[
        bool, typer.Option("--node-losses", help="Play histories that lose whole nodes.")
    ] = False,
    leaves: Annotated[
        bool, typer.Option("--leaves", help="Play histories on several nodes that leave and join again.")
    ] = False,
    outages: Annotated[
        bool, typer.Option("--outages", help="Play histories on several nodes with outages of everything.")
    ] = False,
    spot_checks: Annotated[
        bool, typer.Option("--spot-checks", help="Play histories with spot checks and faulty machines.")
    ] = False,
    gangs: Annotated[
        bool, typer.Option("--gangs", help="Play histories with workers of several processes.")
    ] = False,
    waits: Annotated[
        bool, typer.Option("--waits", help="Play histories that wait for absent sites.")
    ] = False,
    skips: Annotated[
        bool, typer.Option("--skips", help="Play histories that leave absent sites out.")
    ] = False,
    node_skips: Annotated[
        bool, typer.Option("--node-skips", help="Play such histories on several nodes.")
    ] = False,
    slow_reads: Annotated[bool, typer.Option("--slow-reads", help="Let reads of memory end late.")] = False,
    keep_going: Annotated[bool, typer.Option(help="Count failing seeds instead of stopping.")] = False,
) -> None:
    """Play histories; exit with code 1 if one of them breaks a promise."""
    chosen = LAYOUTS if copies == "every" else (None if copies == "all" else int(copies),)
    kinds = (
        *((nodes, draw_nodes), (leaves, draw_leaving_nodes), (node_losses, draw_node_losses)),
        *((network, draw_network), (storm, draw_storm), (outages, draw_outages)),
        *((spot_checks, draw_spot_checks), (gangs, draw_gangs)),
        *((waits, draw_waits), (skips, draw_skips), (node_skips, draw_node_skips)),
    )
    draw_kind = next((kind for asked, kind in kinds if asked), draw_plan)

    def draw(number: int, copies: int | None) -> HistoryPlan:
        plan = draw_kind(number, copies)
        return add_slow_reads(plan) if slow_reads else plan

    if nodes or leaves or outages or node_skips:
        # A term that waits for the claim list warns of that.
        logging.disable(logging.WARNING)
    began, failed, unchecked, steps, deaths, resumed = time.perf_counter(), 0, 0, 0, 0, 0
    codes: Counter[int] = Counter()
    for number in range(seed, seed + histories):
        for number_of_copies in chosen:
            write_line = print_line if transcript else None
            try:
                first = make_history(add_checkpoints(draw(number, number_of_copies)), write_line)
                verdict = first.play()
                second = continue_run(first, draw(number + 1, number_of_copies), write_line)
                after = second.play() if second is not None else None
            except Unchecked:
                unchecked += 1
                continue
            except AssertionError as broken:
                failed += 1
                if not keep_going:
                    replay(
                        add_checkpoints(draw(number, number_of_copies)), draw(number + 1, number_of_copies)
                    )
                    sys.exit(1)
                print_line(f"seed {number} copies {number_of_copies}: {str(broken).splitlines()[0]}")
                continue
            steps, deaths = steps + verdict.steps, deaths + verdict.deaths
            codes[int(verdict.code)] += 1
            if after is not None:
                resumed, deaths = resumed + 1, deaths + after.deaths
    took_s = time.perf_counter() - began
    played = histories * len(chosen)
    print_line(
        f"{played} histories, {failed} broken; {steps} steps, {deaths} deaths; outcomes {dict(codes)}; "
        f"{unchecked} with a gradient that no other worker could check; "
        f"{resumed} resumed from a checkpoint; {60 * played / took_s:.0f} histories per minute"
    )
    sys.exit(1 if failed else 0)


def make_history(plan: HistoryPlan, write_line: Callable[[str], None] | None = None) -> History:
    """Return the history of a plan, on one node or on several."""
    return NodesHistory(plan, write_line) if plan.nodes else History(plan, write_line)


def replay(plan: HistoryPlan, next_plan: HistoryPlan, write_line: Callable[[str], None] = print_line) -> None:
    """Print the transcript of a failing history, or of the attempt after it."""
    write_line(f"--- seed {plan.seed}, copies {plan.shape.layout.copies}: {plan}")
    try:
        first = make_history(plan, write_line)
        first.play()
        if (second := continue_run(first, next_plan, write_line)) is not None:
            write_line(f"--- from step {second.files.origin}: {next_plan}")
            second.play()
    except (Violation, AssertionError) as broken:
        write_line(f"--- broken: {broken}")


if __name__ == "__main__":
    typer.run(main)
