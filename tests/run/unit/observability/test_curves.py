"""Each number that a run has per step becomes a chart; the chart of the loss shows the range that matters."""

import json
import math
import re
from html import unescape

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastane.run.nouns.records import EventLine
from elastane.run.observability.curves import build_series, collect_evaluation_means
from elastane.run.observability.drawing import Axis, add_margin, choose_ticks, compute_robust_range
from elastane.run.observability.report import render_report


def collect_series(run):
    return {series.name: series for series in build_series(run.ledger, run.events)}


def add_all_numbers(line):
    return msgspec.structs.replace(
        line,
        grad_norm=1.0 / line.step,
        learning_rates=(0.1, 0.2 * line.step),
        logged={"accuracy": 0.5, "rare": 1.0} if line.step == 4 else {"accuracy": 0.25},
    )


def make_evaluation(step, **detail):
    return EventLine(time=1000.0 + step, kind="evaluation", step=step, detail=detail)


def test_each_kind_of_number_has_a_chart(make_run) -> None:
    run = make_run(change=add_all_numbers, events=(make_evaluation(3, loss=30.0, seen=10.0, correct=5.0),))
    page = render_report(run)
    charts = re.findall(r'<svg class="small"[^>]*aria-label="([^"]*)"', page)
    assert charts == [
        "learning rate",
        "gradient norm",
        "samples per second",
        "evaluation: loss",
        "evaluation: correct",
        "accuracy",
        "rare",
    ]


def log_as_a_trainer(line):
    known = {"learning_rate": 0.1, "grad_norm": float(np.float32(1.0 / line.step))}
    losses = {"loss": 3.0 / line.step} | ({"eval_loss": 4.0 / line.step} if line.step % 3 == 0 else {})
    return msgspec.structs.replace(add_all_numbers(line), logged={**known, **losses, "epoch": 0.1})


def test_the_values_of_a_trainer_have_one_chart_each_and_its_losses_a_common_one(make_run) -> None:
    found = collect_series(make_run(change=log_as_a_trainer))
    assert list(found) == [
        "learning rate",
        "gradient norm",
        "samples per second",
        "loss and eval_loss",
        "epoch",
    ]
    losses = found["loss and eval_loss"]
    assert losses.labels == ("loss", "eval_loss")
    assert [line[-1] for line in losses.lines] == [(6, 0.5), (6, 4.0 / 6)]


def test_a_value_with_the_name_of_another_and_other_numbers_has_its_own_chart(make_run) -> None:
    def change(line):
        logged = {"learning_rate": 0.3, "grad_norm": 2.0 / line.step, "loss": 7.0}
        return msgspec.structs.replace(add_all_numbers(line), logged=logged)

    assert {"learning_rate", "grad_norm", "loss"} <= collect_series(make_run(change=change)).keys()


def test_an_empty_chart_is_not_drawn(make_run) -> None:
    assert list(collect_series(make_run())) == ["samples per second"]


def test_each_group_has_a_line(make_run) -> None:
    series = collect_series(make_run(change=add_all_numbers))["learning rate"]
    assert [line[-1] for line in series.lines] == [(6, 0.1), (6, pytest.approx(1.2))]
    assert series.labels == ("group 0", "group 1")


def test_the_numbers_under_the_pointer_are_those_of_the_ledger(make_run) -> None:
    page = render_report(make_run(change=add_all_numbers))
    data = re.search(r'aria-label="accuracy"[^>]*data-lines="([^"]*)"', page)
    assert data
    assert json.loads(unescape(data[1]))[0][3] == [4, 0.5]


def test_evaluations_are_means(make_run) -> None:
    events = (
        make_evaluation(2, loss=30.0, seen=10.0),
        make_evaluation(4, loss=20.0, seen=10.0),
        msgspec.structs.replace(make_evaluation(5, loss=8.0), samples=4),
    )
    means = collect_evaluation_means(events, make_run().ledger)
    assert means == {"loss": [(2, 3.0), (4, 2.0), (5, 2.0)]}


def test_the_loss_of_evaluations_is_drawn_with_the_losses(make_run) -> None:
    page = render_report(make_run(events=(make_evaluation(3, loss=7.0, seen=10.0),)))
    assert re.search(r'<circle class="score"[^>]*><title>step 3: evaluation, loss 0.7', page)


def test_an_evaluation_in_other_units_is_drawn_apart_from_the_losses(make_run) -> None:
    quiet = render_report(make_run(events=()))
    page = render_report(make_run(events=(make_evaluation(3, loss=70_000.0),)))
    axis = r'"views":\{"focus":\[([^\]]*)\]'
    assert re.search(axis, page)[1] == re.search(axis, quiet)[1]
    assert "evaluation: loss" in page


def read_views(page):
    return json.loads(re.search(r'id="hover">(.*?)</script>', page)[1])["views"]


def make_long_run(make_run, loss_at, steps=1000):
    run = make_run()
    line = run.ledger[0]
    return msgspec.structs.replace(
        run,
        ledger=tuple(
            msgspec.structs.replace(line, step=step, loss=loss_at(step)) for step in range(1, steps + 1)
        ),
        events=(),
    )


@pytest.mark.parametrize(
    "loss_at",
    [
        lambda step: 11.0 if step < 20 else 2.5 - step / 2000,
        lambda step: 900.0 if step == 500 else 2.5 - step / 2000,
        lambda step: 900.0 if step % 100 == 0 else 2.5 - step / 2000,
    ],
    ids=["the first steps", "one spike", "rare spikes"],
)
def test_outliers_do_not_squeeze_the_loss(make_run, loss_at) -> None:
    page = render_report(make_long_run(make_run, loss_at))
    low, high, _ = read_views(page)["focus"]
    assert low <= 2.0
    assert high < 4.0
    assert read_views(page)["all"][1] > 11.0, "everything can still be seen"
    assert read_views(page)["log"][2]
    assert "above the axis: up to" in page


def test_a_loss_without_outliers_has_one_view_and_no_buttons(make_run) -> None:
    page = render_report(make_long_run(make_run, lambda step: 2.5 - step / 2000))
    assert list(read_views(page)) == ["focus"]
    assert 'type="radio"' not in page


def test_names_of_a_script_are_escaped(make_run) -> None:
    evil = '"><script>alert(1)</script>'
    page = render_report(make_run(change=lambda line: msgspec.structs.replace(line, logged={evil: 1.0})))
    assert "<script>alert" not in page


def test_the_number_of_charts_is_bounded(make_run) -> None:
    logged = {f"value-{i}": float(i) for i in range(500)}
    page = render_report(make_run(change=lambda line: msgspec.structs.replace(line, logged=logged)))
    assert page.count('<svg class="small"') < 100
    assert "more are in ledger.jsonl" in page


def test_two_values_without_a_round_one_between_them_have_one_tick() -> None:
    assert choose_ticks(0.0, 5e-324, 4) == [0.0]
    assert choose_ticks(0.0, 1e-307, 2) == [0.0, 5e-308, 1e-307]


HUGE = st.one_of(st.floats(), st.sampled_from([0.0, 5e-324, 1e-300, 1e300, 1.7e308, -1.7e308, math.inf]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(losses=st.lists(HUGE, min_size=6, max_size=6), others=st.lists(HUGE, min_size=6, max_size=6))
def test_the_numbers_of_a_hostile_run_do_not_break_the_page(make_run, losses, others) -> None:
    def change(line):
        other = others[line.step - 1]
        return msgspec.structs.replace(
            line,
            loss=losses[line.step - 1],
            grad_norm=other,
            learning_rates=(other, 1.0),
            logged={"mine": other},
            seconds={"step": abs(other)},
        )

    run = make_run(change=change, events=(make_evaluation(2, loss=others[0], seen=others[1]),))
    assert "<h1>trial</h1>" in render_report(run)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_the_range_that_matters_is_part_of_the_whole_and_holds_most(values) -> None:
    low, high = compute_robust_range(values)
    assert min(values) <= low <= high <= max(values)
    settled = values[len(values) // 10 :]
    assert sum(low <= value <= high for value in settled) >= math.floor(0.9 * len(settled))
    bottom, top = add_margin(low, high)
    assert bottom < top


def test_a_logarithmic_axis_gives_equal_factors_equal_room() -> None:
    y = Axis(1.0, 100.0, 200.0, 0.0, log=True)
    assert (y(1.0), y(10.0), y(100.0)) == (200.0, 100.0, 0.0)
    assert y.list_ticks(5)[0] == 1.0
