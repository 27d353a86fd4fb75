"""The report of an unmodified script shows its starts and stops over time, and no steps."""

import msgspec
import pytest

from elastane.run.nouns.records import EventLine
from elastane.run.nouns.spec import TorchrunContract
from elastane.run.observability.report import render_report
from elastane.run.observability.report_worlds import collect_world_facts, find_worlds

EVENTS = (
    EventLine(time=100.0, kind="run.started"),
    EventLine(time=102.0, kind="generation.started", workers=(0,), detail={"processes": 2}),
    EventLine(time=110.0, kind="stop.announced", why="from 1 to 3 workers"),
    EventLine(time=111.5, kind="generation.started", workers=(0, 1, 2)),
    EventLine(time=120.0, kind="worker.died", who="worker 1", why="killed by SIGKILL"),
    EventLine(time=120.0, kind="stop.announced", why="worker 1 died"),
    EventLine(time=120.5, kind="generation.started", workers=(0, 1, 2)),
    EventLine(time=130.0, kind="run.stopped"),
    EventLine(time=500.0, kind="run.resumed"),
    EventLine(time=501.0, kind="generation.started", workers=(3, 4)),
    EventLine(time=509.0, kind="run.finished"),
)


@pytest.fixture
def make_script_run(make_run):
    def make(events):
        run = make_run(events=events)
        spec = msgspec.structs.replace(run.record.spec, contract=TorchrunContract(processes=2))
        record = msgspec.structs.replace(run.record, spec=spec, pinned=None)
        return msgspec.structs.replace(run, record=record, ledger=())

    return make


def test_each_world_lasts_from_its_start_to_the_announced_stop():
    spans = [(world.began_s, world.ended_s, world.workers) for world in find_worlds(EVENTS)]
    assert spans == [(102.0, 110.0, 1), (111.5, 120.0, 3), (120.5, 130.0, 3), (501.0, 509.0, 2)]


def test_the_time_between_two_attempts_is_no_restart():
    facts = collect_world_facts(EVENTS)
    assert (facts.starts, facts.deaths, facts.workers) == (4, 1, (1, 3))
    assert (facts.longest_stop_s, facts.stopped_s) == (1.5, 2.0)


def test_a_running_world_lasts_until_the_last_event():
    assert find_worlds(EVENTS[:5])[-1].ended_s == 120.0


def test_a_clock_that_was_set_back_makes_no_negative_time():
    events = (EVENTS[1], EventLine(time=50.0, kind="stop.announced"), EVENTS[1])
    assert collect_world_facts(events).stopped_s == 0.0
    assert [world.ended_s - world.began_s for world in find_worlds(events)] == [0.0, 0.0]


def test_the_page_shows_workers_and_restarts_in_place_of_steps(make_script_run):
    page = render_report(make_script_run(EVENTS))
    assert "longest restart" in page
    assert "1.50 s" in page
    assert "3 workers for 8.5 s" in page
    assert "reports no steps" in page
    for other in ("final loss", "usual step", "elastane verify", "pause of healthy workers", "Pinned"):
        assert other not in page


def test_the_page_of_a_run_that_has_not_started_says_so(make_script_run):
    assert "No process has started" in render_report(make_script_run(EVENTS[:1]))


def test_texts_of_events_cannot_break_the_page(make_script_run):
    evil = "</script><script>alert('&')</script>"
    page = render_report(
        make_script_run((*EVENTS, EventLine(time=509.5, kind="worker.died", who=evil, why=evil)))
    )
    assert evil not in page
