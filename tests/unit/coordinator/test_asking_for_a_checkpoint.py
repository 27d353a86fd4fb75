"""What `elastane checkpoint now` does to a run: the state of that step or a later one is kept."""

from dataclasses import replace

import msgspec
import pytest

from elastane.api.control import (
    AskCheckpoint,
    CheckpointKept,
    CheckpointPart,
    PublishCheckpoint,
    TakeCheckpoint,
)
from elastane.api.spec import CheckpointPolicy


@pytest.fixture
def keeping(training):
    """Two workers at step 10 of a run that keeps its state only when asked."""
    stage = training(2)
    policy = CheckpointPolicy(url="there")
    stage.roster = replace(stage.roster, spec=msgspec.structs.replace(stage.roster.spec, checkpoints=policy))
    at(stage, 10)
    stage.actions.clear()
    return stage


def at(stage, step):
    for made in range(stage.roster.progress.recorded + 1, step + 1):
        for worker in (0, 1):
            stage.worker(worker, step=made)
            stage.step(made, worker)


def write(stage, step, state="written", error=""):
    part = CheckpointPart(name=f"step-{step:08d}", step=step, writers=(0, 1), state=state, error=error)
    for worker in (0, 1):
        stage.worker(worker, checkpoints=(part,))


def publish(stage, step):
    stage.hear(CheckpointKept(worker=0, name=f"step-{step:08d}", step=step, bytes=9))


def test_every_worker_is_asked_and_the_checkpoint_published(keeping):
    assert keeping.told(TakeCheckpoint) == []
    answer = keeping.ask(AskCheckpoint())
    assert (answer.ok, answer.step) == (True, 10)
    assert keeping.told(TakeCheckpoint, 0) == keeping.told(TakeCheckpoint, 1) == [TakeCheckpoint(after=0)]
    at(keeping, 11)
    write(keeping, 11)
    assert [order.step for order in keeping.told(PublishCheckpoint)] == [11]
    publish(keeping, 11)
    assert keeping.kinds("checkpoint.saved") == ["checkpoint.saved"]


def test_it_is_asked_once_and_not_again_when_it_exists(keeping):
    keeping.ask(AskCheckpoint())
    at(keeping, 11)
    write(keeping, 11)
    publish(keeping, 11)
    keeping.actions.clear()
    keeping.wait(3600)
    assert keeping.told(TakeCheckpoint) == []


def test_one_under_way_that_is_too_old_is_followed_by_another(keeping):
    write(keeping, 5, state="writing")
    keeping.ask(AskCheckpoint())
    assert keeping.told(TakeCheckpoint) == []  # never two at once
    write(keeping, 5)
    publish(keeping, 5)
    keeping.wait(0.1)
    assert keeping.told(TakeCheckpoint, 0) == [TakeCheckpoint(after=5)]


def test_one_under_way_that_is_new_enough_will_do(keeping):
    write(keeping, 10, state="writing")
    keeping.ask(AskCheckpoint())
    write(keeping, 10)
    publish(keeping, 10)
    keeping.wait(0.1)
    assert keeping.told(TakeCheckpoint) == []


def test_a_run_without_checkpoints_refuses(training):
    answer = training(2).ask(AskCheckpoint())
    assert not answer.ok
    assert "--checkpoint-every never" in answer.why
