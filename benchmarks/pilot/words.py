"""The figures of all arms, as lines of text."""

from collections.abc import Callable, Mapping, Sequence

from pilot.figures import Figures, Queue

LONG_S = 100.0


def format_queue(one: Queue) -> str:
    return f"{format_seconds(one.p50_s)}, {format_seconds(one.longest_s)}"


def format_seconds(value: float) -> str:
    return f"{value:.1f} s" if value < LONG_S else f"{value:.0f} s"


ROWS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("in the queue, p50 and longest", lambda one: format_queue(one.queue)),
    ("submission to first step, p50", lambda one: format_seconds(one.first_step_s)),
    ("submission to end, mean", lambda one: format_seconds(one.done_s)),
    ("end of the last job", lambda one: format_seconds(one.all_done_s)),
    ("devices in use, of the available ones", lambda one: f"{one.utilisation:.0%}"),
    ("devices in committed steps", lambda one: f"{one.training:.0%}"),
    ("microbatches wasted, and committed", lambda one: f"{one.worked.again}, {one.worked.committed:,}"),
    ("steps repeated", lambda one: str(one.worked.lost_steps)),
    ("interventions", lambda one: str(one.interventions)),
    ("cost", lambda one: f"{one.cost:.2f}"),
    ("resizes, and the most of one job", lambda one: f"{one.resizes}, {one.most_resizes}"),
    ("resizes undone within a cooldown", lambda one: str(one.back_and_forth)),
    ("preemptions", lambda one: str(one.preemptions)),
    ("crashes survived", lambda one: str(one.crashes)),
)


def build_rows(figures: Mapping[str, Figures]) -> list[tuple[str, ...]]:
    """Return a head, then a line for each figure: its name and the value of each arm."""
    first, *rest = ((name, *(format_figure(one) for one in figures.values())) for name, format_figure in ROWS)
    teams = sorted({team for one in figures.values() for team in one.queue_by_team})
    by_team = [
        (f"  of {team}", *(format_queue(one.queue_by_team[team]) for one in figures.values()))
        for team in teams
    ]
    return [("", *figures), first, *by_team, *rest]


def format_table(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of which the first one is the head, in columns."""
    name, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
    return "\n".join(
        "  ".join(
            [line[0].ljust(name), *(cell.rjust(width) for cell, width in zip(line[1:], widths, strict=True))]
        )
        for line in lines
    )
