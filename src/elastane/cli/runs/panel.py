"""The panel that ``elastane run`` shows on a terminal."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from elastane.cli.runs.progress import Progress
from elastane.cli.runs.run_display import describe_run_event
from elastane.common.durations import format_duration
from elastane.run.nouns.records import LedgerLine
from elastane.run.nouns.spec import RunSpec
from elastane.run.observability.quantities import format_loss

CELLS = 48
CURVE_CELLS = 32
MOST_WORKERS = 12
BLOCKS = " ▁▂▃▄▅▆▇█"
HUES = ("bright_blue", "green", "magenta", "cyan", "yellow", "bright_red", "bright_green", "bright_magenta")


def render_panel(spec: RunSpec, progress: Progress, note: str) -> RenderableType:
    """Return the panel of a run; ``note`` is the line at its foot, such as the effect of Ctrl-C."""
    parts: list[RenderableType] = [render_headline(progress), render_progress(progress), Text()]
    if progress.line is not None:
        parts.append(
            render_workers(progress.line, progress.virtual_ranks or count_virtual_ranks(progress.line))
        )
    if progress.events:
        parts += [Text(), *(cut_line(describe_run_event(event)) for event in progress.events)]
    return Panel(
        Group(*parts),
        title=Text(spec.name, style="bold"),
        title_align="left",
        subtitle=Text(note, style="dim"),
        subtitle_align="right",
        border_style="dim",
        padding=(0, 1),
    )


def cut_line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def render_headline(progress: Progress) -> RenderableType:
    if progress.line is None:
        return Text("waiting for the first step")
    of = f" / {progress.steps:,}" if progress.steps else ""
    return cut_line(
        Text.assemble(
            ("step ", "dim"),
            (f"{progress.step:,}{of}", "bold"),
            ("   loss ", "dim"),
            (format_loss(progress.line.loss), "bold"),
            "  ",
            (draw_sparkline(progress.curve.values), "bright_blue"),
            (f"   {progress.samples_per_s:,.0f} samples/s   generation {progress.line.generation}", "dim"),
        )
    )


def render_progress(progress: Progress) -> RenderableType:
    row = Table.grid(padding=(0, 2), expand=True)
    row.add_column(ratio=1)
    row.add_column(justify="right", no_wrap=True)
    left = progress.left_s
    words = "" if left is None else f"{format_duration(left)} left" if left else "done"
    row.add_row(
        ProgressBar(total=progress.steps or 1, completed=progress.step, complete_style="bright_blue"),
        Text(words, style="dim"),
    )
    return row


def draw_sparkline(values: Sequence[float]) -> str:
    """Return a curve as at most `CURVE_CELLS` characters; the height of each is the mean of its stretch."""
    if not values:
        return ""
    cells = min(CURVE_CELLS, len(values))
    means = []
    for i in range(cells):
        stretch = values[len(values) * i // cells : len(values) * (i + 1) // cells]
        means.append(sum(stretch) / len(stretch))
    low, span = min(means), (max(means) - min(means)) or 1.0
    return "".join(BLOCKS[1 + round(7 * (mean - low) / span)] for mean in means)


def render_workers(line: LedgerLine, virtual_ranks: int) -> RenderableType:
    """Return a table with a row per worker: the virtual ranks that it computed in the newest step."""
    table = Table.grid(padding=(0, 2))
    workers = sorted(line.workers.items())
    for worker, spans in workers[:MOST_WORKERS]:
        count = sum(stop - start for start, stop in spans)
        words = f"{count} of {virtual_ranks} virtual ranks"
        picture = draw_virtual_ranks(spans, virtual_ranks, HUES[worker % len(HUES)])
        table.add_row(Text(f"worker {worker}"), picture, Text(words, style="dim"))
    if len(workers) > MOST_WORKERS:
        table.add_row(Text(f"and {len(workers) - MOST_WORKERS} more", style="dim"))
    return table


def draw_virtual_ranks(spans: Sequence[tuple[int, int]], virtual_ranks: int, hue: str) -> Text:
    """Return a row of all virtual ranks with those of one worker filled, scaled down if they do not fit."""
    mine = {rank for start, stop in spans for rank in range(start, stop)}
    cells = min(virtual_ranks, CELLS)
    text = Text()
    for i in range(cells):
        stretch = range(virtual_ranks * i // cells, virtual_ranks * (i + 1) // cells)
        held = any(rank in mine for rank in stretch)
        text.append("●" if held else "·", style=hue if held else "dim")
    return text


def count_virtual_ranks(line: LedgerLine) -> int:
    return max((stop for spans in line.workers.values() for _, stop in spans), default=1)
