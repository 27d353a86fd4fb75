"""The figures of all arms, as lines of text."""

from collections.abc import Callable, Mapping

from pilot.figures import Figures, Queue

LONG_S = 100.0


def queue(one: Queue) -> str:
    return f"{seconds(one.p50_s)}, {seconds(one.longest_s)}"


def seconds(value: float) -> str:
    return f"{value:.1f} s" if value < LONG_S else f"{value:.0f} s"


ROWS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("in the queue, p50 and longest", lambda one: queue(one.queue)),
    ("submitted to first step, p50", lambda one: seconds(one.first_step_s)),
    ("submitted to done, mean", lambda one: seconds(one.done_s)),
    ("all done after", lambda one: seconds(one.all_done_s)),
    ("devices in use, of those there were", lambda one: f"{one.utilisation:.0%}"),
    ("devices in steps that hold", lambda one: f"{one.training:.0%}"),
    ("microbatches for nothing, and committed", lambda one: f"{one.worked.again}, {one.worked.committed:,}"),
    ("steps made again", lambda one: str(one.worked.lost_steps)),
    ("interventions", lambda one: str(one.interventions)),
    ("cost", lambda one: f"{one.cost:.2f}"),
    ("resizes, and most of one job", lambda one: f"{one.resizes}, {one.most_resizes}"),
    ("of these back within a cooldown", lambda one: str(one.back_and_forth)),
    ("preemptions", lambda one: str(one.preemptions)),
    ("crashes survived", lambda one: str(one.crashes)),
)


def rows(figures: Mapping[str, Figures]) -> list[tuple[str, ...]]:
    """Return a head, then a line for each figure: its name and the value of each arm."""
    first, *rest = ((name, *(told(one) for one in figures.values())) for name, told in ROWS)
    teams = sorted({team for one in figures.values() for team in one.queue_by_team})
    by_team = [
        (f"  of {team}", *(queue(one.queue_by_team[team]) for one in figures.values())) for team in teams
    ]
    return [("", *figures), first, *by_team, *rest]


def table(figures: Mapping[str, Figures]) -> str:
    lines = rows(figures)
    name, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
    return "\n".join(
        "  ".join(
            [line[0].ljust(name), *(cell.rjust(width) for cell, width in zip(line[1:], widths, strict=True))]
        )
        for line in lines
    )
