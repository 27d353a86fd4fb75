"""``python -m tests.simulator``: play thousands of histories.

The program prints a history that breaks a promise with its transcript; the seed repeats the history exactly.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Annotated

import typer

from tests.simulator.checkers import Violation
from tests.simulator.faults import HistoryPlan, add_checkpoints, draw_plan, draw_storm
from tests.simulator.history import History, continue_run

LAYOUTS: tuple[int | None, ...] = (None, 1, 2, 3)


def print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def main(  # noqa: PLR0917 - options, named on the command line
    seed: Annotated[int, typer.Option(help="First seed.")] = 0,
    histories: Annotated[int, typer.Option(help="How many, per number of copies.")] = 1000,
    copies: Annotated[str, typer.Option(help="all, 1, 2, 3 or every.")] = "every",
    transcript: Annotated[bool, typer.Option(help="Narrate, even what went well.")] = False,
    stormy: Annotated[bool, typer.Option("--storm", help="Histories without a quiet step.")] = False,
    keep_going: Annotated[bool, typer.Option(help="Count failing seeds instead of stopping.")] = False,
) -> None:
    """Play histories; exit with code 1 if one of them breaks a promise."""
    chosen = LAYOUTS if copies == "every" else (None if copies == "all" else int(copies),)
    draw = draw_storm if stormy else draw_plan
    began, failed, steps, deaths, resumed = time.perf_counter(), 0, 0, 0, 0
    codes: Counter[int] = Counter()
    for number in range(seed, seed + histories):
        for some in chosen:
            say = print_line if transcript else None
            try:
                first = History(add_checkpoints(draw(number, some)), say)
                verdict = first.play()
                second = continue_run(first, draw(number + 1, some), say)
                after = second.play() if second is not None else None
            except AssertionError as broken:
                failed += 1
                if not keep_going:
                    replay(add_checkpoints(draw(number, some)), draw(number + 1, some))
                    sys.exit(1)
                print_line(f"seed {number} copies {some}: {str(broken).splitlines()[0]}")
                continue
            steps, deaths = steps + verdict.steps, deaths + verdict.deaths
            codes[int(verdict.code)] += 1
            if after is not None:
                resumed, deaths = resumed + 1, deaths + after.deaths
    took_s = time.perf_counter() - began
    played = histories * len(chosen)
    print_line(
        f"{played} histories, {failed} broken; {steps} steps, {deaths} deaths; outcomes {dict(codes)}; "
        f"{resumed} went on from a checkpoint; {60 * played / took_s:.0f} histories per minute"
    )
    sys.exit(1 if failed else 0)


def replay(some: HistoryPlan, then: HistoryPlan, say: Callable[[str], None] = print_line) -> None:
    """Print the transcript of a failing history, or of the attempt after it."""
    say(f"--- seed {some.seed}, copies {some.shape.layout.copies}: {some}")
    try:
        first = History(some, say)
        first.play()
        if (second := continue_run(first, then, say)) is not None:
            say(f"--- from step {second.files.origin}: {then}")
            second.play()
    except (Violation, AssertionError) as broken:
        say(f"--- broken: {broken}")


if __name__ == "__main__":
    typer.run(main)
