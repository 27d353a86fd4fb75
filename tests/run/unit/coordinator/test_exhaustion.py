"""A member that exhausts a resource dies like any other; after too many of them the run replaces none."""

import pytest

from elastane.run.coordinator.run_end import MOST_DEATHS, WITHIN_S, WITHIN_STEPS
from elastane.run.nouns.control import RunOver, SetTarget
from elastane.run.nouns.resources import FILE_DESCRIPTORS, RESOURCES

CODE = FILE_DESCRIPTORS.exit_code


def join_and_die(stage, worker: int, code: int = CODE) -> None:
    """Let a replacement join, and end its process."""
    stage.start(worker)
    stage.adopt()
    stage.end_worker(worker, code)
    if stage.alive:
        stage.adopt(*sorted(stage.alive))


@pytest.mark.parametrize("resource", RESOURCES.values(), ids=lambda resource: resource.name)
def test_the_event_of_the_death_names_the_resource_and_the_remedy(training, resource):
    stage = training(3)
    stage.end_worker(1, resource.exit_code)
    assert stage.newest.workers == (0, 2)
    (died,) = [event for event in stage.events if event.kind == "worker.died"]
    assert resource.name in died.why
    assert resource.do in died.why
    assert not stage.list_messages(RunOver)


def test_the_run_stops_replacing_workers_that_exhaust_a_resource(training):
    stage = training(2)
    stage.end_worker(1, CODE)
    stage.adopt(0)
    for worker in range(2, MOST_DEATHS + 1):
        join_and_die(stage, worker)
    assert stage.list_messages(SetTarget)[-1].target == 1
    assert not stage.list_messages(RunOver)
    (event,) = [event for event in stage.events if event.kind == "resize.requested"]
    assert "file descriptors" in event.why
    assert "ulimit -n" in event.why


def test_exhausted_workers_far_apart_are_always_replaced(training):
    stage = training(2)
    stage.end_worker(1, CODE)
    stage.adopt(0)
    for worker in range(2, 3 * MOST_DEATHS):
        stage.wait(WITHIN_S)
        for step in range(stage.roster.progress.step + 1, stage.roster.progress.step + WITHIN_STEPS + 1):
            stage.report_step(step, 0)
            stage.report_worker(0, step=step)
        join_and_die(stage, worker)
    assert [e.why for e in stage.events if e.kind == "resize.requested"] == []


def test_a_run_fails_with_the_reason_if_its_only_worker_exhausts_a_resource_repeatedly(open_stage):
    stage = open_stage(start=1)
    for worker in range(MOST_DEATHS):
        assert not stage.list_messages(RunOver)
        stage.start(worker)
        stage.adopt()
        stage.end_worker(worker, CODE)
    (over,) = stage.list_messages(RunOver)
    assert over.code == 1
    assert "file descriptors" in over.why
    assert "ulimit -n" in over.why


def test_deaths_for_other_reasons_do_not_count(training):
    stage = training(2)
    stage.end_worker(1, -9)
    stage.adopt(0)
    for worker in range(2, 2 * MOST_DEATHS):
        join_and_die(stage, worker, -9)
    assert [e.why for e in stage.events if e.kind == "resize.requested"] == []
