"""A member that runs out of a resource dies like any other; too many of them are not replaced any more."""

import pytest

from elastane.api.control import RunOver, SetTarget
from elastane.api.resources import FILE_DESCRIPTORS, RESOURCES
from elastane.coordinator.exhaustion import MOST_DEATHS, WITHIN_S, WITHIN_STEPS

CODE = FILE_DESCRIPTORS.exit_code


def join_and_die(stage, worker: int, code: int = CODE) -> None:
    """A replacement becomes a member, and its process ends."""
    stage.start(worker)
    stage.adopt()
    stage.exit(worker, code)
    if stage.alive:
        stage.adopt(*sorted(stage.alive))


@pytest.mark.parametrize("resource", RESOURCES.values(), ids=lambda resource: resource.name)
def test_the_line_of_its_death_names_the_resource_and_what_to_do(training, resource):
    stage = training(3)
    stage.exit(1, resource.exit_code)
    assert stage.newest.workers == (0, 2)
    (died,) = [event for event in stage.events if event.kind == "worker.died"]
    assert resource.name in died.why
    assert resource.do in died.why
    assert not stage.told(RunOver)


def test_replacements_that_keep_dying_are_not_replaced_for_ever(training):
    stage = training(2)
    stage.exit(1, CODE)
    stage.adopt(0)
    for worker in range(2, MOST_DEATHS + 1):
        join_and_die(stage, worker)
    assert stage.told(SetTarget)[-1].target == 1
    assert not stage.told(RunOver)
    (event,) = [event for event in stage.events if event.kind == "resize.requested"]
    assert "file descriptors" in event.why
    assert "ulimit -n" in event.why


def test_deaths_far_apart_are_replaced_for_ever(training):
    stage = training(2)
    stage.exit(1, CODE)
    stage.adopt(0)
    for worker in range(2, 3 * MOST_DEATHS):
        stage.wait(WITHIN_S)
        for step in range(stage.roster.progress.step + 1, stage.roster.progress.step + WITHIN_STEPS + 1):
            stage.step(step, 0)
            stage.worker(0, step=step)
        join_and_die(stage, worker)
    assert [e.why for e in stage.events if e.kind == "resize.requested"] == []


def test_a_run_whose_only_worker_dies_again_and_again_fails_with_the_reason(open_stage):
    stage = open_stage(start=1)
    for worker in range(MOST_DEATHS):
        assert not stage.told(RunOver)
        stage.start(worker)
        stage.adopt()
        stage.exit(worker, CODE)
    (over,) = stage.told(RunOver)
    assert over.code == 1
    assert "file descriptors" in over.why
    assert "ulimit -n" in over.why


def test_other_deaths_do_not_count(training):
    stage = training(2)
    stage.exit(1, -9)
    stage.adopt(0)
    for worker in range(2, 2 * MOST_DEATHS):
        join_and_die(stage, worker, -9)
    assert [e.why for e in stage.events if e.kind == "resize.requested"] == []
