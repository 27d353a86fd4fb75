"""The progress of a run, collected from its ledger and events."""

import msgspec
from rich.console import Console

from elastane.cli.runs.panel import draw_sparkline, draw_virtual_ranks, render_panel
from elastane.cli.runs.progress import CURVE_POINTS, Curve, Progress, add_event, add_line
from elastane.cli.runs.run_display import describe_run_event, describe_run_progress
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.spec import RunSpec


def test_a_progress_line_has_the_step_the_loss_and_the_speed(lines) -> None:
    progress = Progress(steps=4)
    assert describe_run_progress(progress) == "waiting for the first step"
    for step in (1, 2):
        progress = add_line(progress, lines(step))
    assert describe_run_progress(progress) == "step 2/4  loss 0.5000  1 worker  40 samples/s  0.2 s left"
    assert progress.samples == 8


def test_logged_values_are_in_the_line(lines) -> None:
    logged = {"accuracy": 0.25, "broken": None} | {f"value_{number}": 1e-7 for number in range(9)}
    line = msgspec.structs.replace(lines(1), logged=logged)
    shown = describe_run_progress(add_line(Progress(steps=4), line))
    assert "loss 1.0000  accuracy 0.25  value_0 1e-07  value_1 1e-07" in shown
    assert "value_4 1e-07  ...  1 worker" in shown


def test_the_curve_covers_the_whole_run_in_bounded_memory() -> None:
    curve = Curve()
    for value in range(10_000):
        curve = curve.with_next(float(value))
    assert len(curve.values) <= CURVE_POINTS
    assert curve.values[0] == 0.0
    assert list(curve.values) == sorted(curve.values)
    assert curve.values[-1] > 9_000


def test_a_sparkline_falls_with_the_loss() -> None:
    assert draw_sparkline([4.0, 3.0, 2.0, 1.0]) == "█▆▃▁"
    assert draw_sparkline([]) == ""
    assert len(draw_sparkline([1.0] * 500)) == 32


def test_cells_show_the_virtual_ranks_of_a_worker() -> None:
    assert draw_virtual_ranks([(0, 2), (3, 4)], 6, "green").plain == "●●·●··"
    assert len(draw_virtual_ranks([(0, 500)], 1000, "green").plain) == 48


def test_starting_workers_are_shown_only_before_the_first_step(lines) -> None:
    event = EventLine(time=1.0, kind="worker.ready", who="worker 3")
    assert add_event(Progress(), event).events == (event,)
    assert add_event(add_line(Progress(), lines(1)), event).events == ()


def test_an_event_shows_its_workers_reason_and_pause() -> None:
    event = EventLine(
        time=1.0,
        kind="generation.started",
        step=12,
        workers=(0, 2),
        why="worker 1 died",
        pause_ms={0: 31.2, 2: 44.9},
        pause_steps={0: 0.2, 2: 0.31},
    )
    assert describe_run_event(event).plain == (
        "   step 12  generation.started  workers 0, 2; worker 1 died; longest pause 45 ms (0.31 steps)"
    )


def test_the_panel_survives_odd_losses_and_markup(lines) -> None:
    console = Console(width=100, record=True, file=None, quiet=False, force_terminal=False)
    line = msgspec.structs.replace(lines(2), loss=None, workers={w: ((w, w + 1),) for w in range(40)})
    progress = add_line(Progress(steps=4, virtual_ranks=40), line)
    progress = add_event(progress, EventLine(time=0.0, kind="worker.failed", why="[bold]raised[/nonsense]"))
    with console.capture() as captured:
        console.print(render_panel(RunSpec(name="[red]trial", script="x"), progress, "Ctrl-C stops"))
    text = captured.get()
    for words in ("[red]trial", "not finite", "and 28 more", "[bold]raised[/nonsense]", "Ctrl-C stops"):
        assert words in text
