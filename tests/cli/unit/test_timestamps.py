"""The command line shows all times in the time zone of the terminal."""

import io
import time

import msgspec
import pytest
from rich.console import Console

from elastane.cli.explain import print_decisions
from elastane.cli.jobs.job_display import describe_job_event, list_explanation_lines
from elastane.cli.timestamps import localize_timestamps
from elastane.cluster.nouns.history import DecisionRecord, Event
from elastane.cluster.nouns.job_records import Explanation

AT_S = 1795338000.0  # 2026-11-22 09:00 UTC
SENTENCE = "It crashed and is retried at 2026-11-22 09:00:00 UTC."


@pytest.fixture(autouse=True)
def in_tokyo(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("2026-11-22 09:00:00 UTC", "2026-11-22 18:00:00"),
        ("2026-11-22T09:00:00Z", "2026-11-22 18:00:00"),
        ("deadline 2026-11-22T09:00:00.624958Z -> none", "deadline 2026-11-22 18:00:00 -> none"),
        ("2026-11-22T10:00:00.5+01:00", "2026-11-22 18:00:00"),
        ("from 2026-11-22 20:00:00 UTC on", "from 2026-11-23 05:00:00 on"),
        ("the job of 2026-11-22", "the job of 2026-11-22"),
    ],
)
def test_a_time_in_utc_is_shown_in_the_zone_of_the_terminal(written, shown):
    assert localize_timestamps(written) == shown


def test_sentences_of_the_controller_and_the_columns_beside_them_are_in_one_zone():
    event = Event(id=1, time_s=AT_S, kind="job.crashed", job="j", message=f"j crashed. {SENTENCE}")
    assert "18:00:00" in describe_job_event(event, of_job=True).plain
    decided = DecisionRecord(id=1, time_s=AT_S, action="wait", workers={}, sentences=("j waits.", SENTENCE))
    console = Console(width=200, record=True, file=io.StringIO())
    print_decisions(console, [decided])
    lines = [
        describe_job_event(event, of_job=True).plain,
        *list_explanation_lines(Explanation(sentences=(SENTENCE,))),
        console.export_text(),
    ]
    for line in lines:
        assert "2026-11-22 18:00:00" in line
        assert "UTC" not in line


def test_the_list_of_runs_shows_start_times_in_the_zone_of_the_terminal(elastane, finished_run):
    finished_run()
    assert "2026-01-01 09:00:00" in elastane("list").stdout
    (row,) = msgspec.json.decode(elastane("list", "--json").stdout)
    assert row["created"] == "2026-01-01T00:00:00Z"
