"""The effect of `elastane checkpoint now`: a checkpoint of the present step or a later one."""

from dataclasses import replace

import msgspec
import pytest

from elastane.run.nouns.control import (
    AskCheckpoint,
    CheckpointKept,
    CheckpointPart,
    PublishCheckpoint,
    TakeCheckpoint,
)
from elastane.run.nouns.spec import CheckpointPolicy


@pytest.fixture(name="stage")
def make_stage(training):
    """Return two workers at step 10 of a run that takes checkpoints only on request."""
    stage = training(2)
    policy = CheckpointPolicy(url="there")
    stage.roster = replace(stage.roster, spec=msgspec.structs.replace(stage.roster.spec, checkpoints=policy))
    commit_until(stage, 10)
    stage.actions.clear()
    return stage


def commit_until(stage, step):
    for made in range(stage.roster.progress.recorded + 1, step + 1):
        for worker in (0, 1):
            stage.report_worker(worker, step=made)
            stage.report_step(made, worker)


def write(stage, step, state="written", error=""):
    part = CheckpointPart(name=f"step-{step:08d}", step=step, writers=(0, 1), state=state, error=error)
    for worker in (0, 1):
        stage.report_worker(worker, checkpoints=(part,))


def publish(stage, step):
    stage.receive(CheckpointKept(worker=0, name=f"step-{step:08d}", step=step, bytes=9))


def test_every_worker_gets_the_request_and_the_checkpoint_is_published(stage):
    assert stage.list_messages(TakeCheckpoint) == []
    answer = stage.ask(AskCheckpoint())
    assert (answer.ok, answer.step) == (True, 10)
    assert (
        stage.list_messages(TakeCheckpoint, 0)
        == stage.list_messages(TakeCheckpoint, 1)
        == [TakeCheckpoint(after=0)]
    )
    commit_until(stage, 11)
    write(stage, 11)
    assert [order.step for order in stage.list_messages(PublishCheckpoint)] == [11]
    publish(stage, 11)
    assert stage.list_kinds("checkpoint.saved") == ["checkpoint.saved"]


def test_a_request_is_met_once(stage):
    stage.ask(AskCheckpoint())
    commit_until(stage, 11)
    write(stage, 11)
    publish(stage, 11)
    stage.actions.clear()
    stage.wait(3600)
    assert stage.list_messages(TakeCheckpoint) == []


def test_another_checkpoint_follows_one_that_is_too_old(stage):
    write(stage, 5, state="writing")
    stage.ask(AskCheckpoint())
    assert stage.list_messages(TakeCheckpoint) == []  # only one at a time
    write(stage, 5)
    publish(stage, 5)
    stage.wait(0.1)
    assert stage.list_messages(TakeCheckpoint, 0) == [TakeCheckpoint(after=5)]


def test_a_checkpoint_in_progress_meets_the_request_if_it_is_new_enough(stage):
    write(stage, 10, state="writing")
    stage.ask(AskCheckpoint())
    write(stage, 10)
    publish(stage, 10)
    stage.wait(0.1)
    assert stage.list_messages(TakeCheckpoint) == []


def test_a_run_without_checkpoints_refuses_the_request(training):
    answer = training(2).ask(AskCheckpoint())
    assert not answer.ok
    assert "--checkpoint-every never" in answer.why
