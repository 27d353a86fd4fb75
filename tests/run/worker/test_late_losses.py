"""Losses that a device still computes: the training thread waits for none, and nothing overtakes one."""

import queue
import threading

import pytest
import torch

from elastane.common.errors import BadInput, RunFailed
from elastane.run.protocol import events
from elastane.run.protocol.messages import Leaf
from elastane.run.worker import assembly
from elastane.run.worker.late_losses import LateLoss, ResultPoster
from elastane.run.worker.reactor import ReactorFailure
from elastane.run.worker.state.devices import LateNumber
from elastane.run.worker.state.placement import Mirrored
from tests.waiting import WAIT_S

from .cuda_streams import Streams
from .lessons import Lesson, assert_same_bits, train_elastic
from .test_models import build_mlp, compute_token_loss

TRAINING = threading.main_thread().name


@pytest.fixture
def streams(monkeypatch):
    monkeypatch.setattr(assembly, "choose_placement", Mirrored)
    return Streams(monkeypatch)


class Inbox:
    """Stands for the reactor: keeps the posted events."""

    def __init__(self) -> None:
        self.posted: queue.SimpleQueue[events.Event] = queue.SimpleQueue()
        self.post_result = self.post_late_result = self.posted.put
        self.directives: queue.SimpleQueue[object] = queue.SimpleQueue()


def make_loss(value: float, weight: float | LateNumber | None = None) -> LateLoss:
    return LateLoss(LateNumber(torch.tensor(value)), 7, weight, by_samples=False, term_of=None)


def compute_weighted_loss(model, batch):
    loss, weight = compute_token_loss(model, batch)
    return loss, torch.tensor(weight)


@pytest.mark.parametrize("loss", [Lesson.loss, compute_weighted_loss])
def test_late_losses_train_the_same_model(monkeypatch, loss):
    lesson = Lesson(build_mlp, clip=0.05, loss=loss)
    expected = train_elastic(lesson)
    monkeypatch.setattr(assembly, "choose_placement", Mirrored)
    Streams(monkeypatch)
    learned = train_elastic(lesson)
    assert learned.losses == expected.losses
    assert_same_bits(learned.model, expected.model)


def test_the_training_thread_waits_for_no_loss(streams):
    losses = train_elastic(Lesson(build_mlp, clip=0.05)).losses
    assert TRAINING not in streams.waits
    assert len(streams.waits) > len(losses)


def test_the_next_microbatch_is_computed_before_the_loss_of_the_last_one_has_arrived(streams):
    """If the training thread waited for it, this test would never end."""
    computed = []

    def compute_loss(model, batch):
        # Three passes are the rehearsal's; the last of the first step lets all losses arrive.
        computed.append(len(computed))
        if len(computed) == 4:
            streams.arrival.clear()
        if len(computed) == 7:
            streams.arrival.set()
        return Lesson.loss(model, batch)

    assert len(train_elastic(Lesson(build_mlp, loss=compute_loss, steps=2)).losses) == 2


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_loss_that_is_not_finite_ends_the_run_before_the_commit(streams, bad):
    computed = []

    def compute_loss(model, batch):
        computed.append(len(computed))
        loss, weight = Lesson.loss(model, batch)
        return loss * (bad if len(computed) == 9 else 1), weight

    with pytest.raises(RunFailed, match="the loss of step 2, virtual rank 1 is"):
        train_elastic(Lesson(build_mlp, loss=compute_loss))


def test_results_keep_their_order():
    inbox, arrival = Inbox(), threading.Event()
    late = make_loss(2.0)
    late.number.read = lambda: arrival.wait(WAIT_S) and 2.0
    poster = ResultPoster(inbox)
    poster.post_leaf(Leaf(0, 0, samples=1), late, events.Computed)
    final = events.PartialSumsFinal(1, (0,), ())
    poster.post(final)
    assert inbox.posted.empty()
    arrival.set()
    assert inbox.posted.get(timeout=WAIT_S) == events.Computed(Leaf(0, 0, samples=1, loss=2.0, weight=1.0))
    assert inbox.posted.get(timeout=WAIT_S) == final


def test_nothing_is_posted_after_a_loss_that_is_not_finite():
    inbox = Inbox()
    poster = ResultPoster(inbox)
    poster.post_leaf(Leaf(3, 0, samples=1), make_loss(float("inf")), events.Computed)
    failure = inbox.directives.get(timeout=WAIT_S)
    assert isinstance(failure, ReactorFailure)
    assert "step 7, virtual rank 3" in str(failure.error)
    poster.post(events.Applied())
    assert inbox.posted.empty()


def test_a_late_weight_is_checked_when_it_has_arrived(monkeypatch):
    Streams(monkeypatch)
    weight = LateNumber(torch.tensor(-1.0))
    assert not weight.has_arrived
    with pytest.raises(BadInput, match="invalid weight"):
        make_loss(1.0, weight).put_into(Leaf(0, 0, samples=1))
