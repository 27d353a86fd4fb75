"""Evaluations are shown as means over their samples, in every place."""

import math

import pytest

from elastane.cli.runs.run_display import describe_run_event
from elastane.run.nouns.records import EventLine
from elastane.run.observability.evaluations import describe_evaluation, read_evaluation_means
from elastane.run.observability.report import render_report

LOSS = EventLine(time=1.0, kind="evaluation", step=3, detail={"loss": 552.32, "seen": 160.0}, samples=160)


def test_an_evaluation_is_a_mean_with_its_number_of_samples():
    assert describe_evaluation(LOSS) == "loss 3.452 (160 samples)"


def test_the_terminal_shows_the_mean():
    assert "loss 3.452 (160 samples)" in describe_run_event(LOSS).plain


def test_the_report_shows_the_mean(make_run):
    page = render_report(make_run(events=(LOSS,)))
    assert "loss 3.452 (160 samples)" in page
    assert 'aria-label="evaluation: loss"' in page


@pytest.mark.parametrize("total", [None, math.inf, math.nan, "text"])
def test_a_total_that_is_not_finite_has_no_mean(total):
    event = EventLine(time=1.0, kind="evaluation", detail={"loss": total}, samples=160)
    assert read_evaluation_means(event) == {"loss": None}
    assert "not finite" in describe_evaluation(event)


@pytest.mark.parametrize("samples", [None, 0])
def test_an_event_of_an_earlier_version_has_its_totals(samples):
    event = EventLine(time=1.0, kind="evaluation", detail={"loss": 7.0}, samples=samples)
    assert read_evaluation_means(event) == {"loss": 7.0}


def test_a_mean_is_over_tokens_if_the_script_counts_them():
    event = EventLine(time=1.0, kind="evaluation", detail={"loss": 30.0, "tokens": 1200.0}, samples=160)
    assert describe_evaluation(event) == "loss 0.025 (1,200 tokens)"


def test_an_evaluation_without_values_has_its_number_of_samples():
    assert describe_evaluation(EventLine(time=1.0, kind="evaluation", samples=160)) == "160 samples"
