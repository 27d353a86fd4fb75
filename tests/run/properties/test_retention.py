"""Retention never deletes a checkpoint that a restore may need."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.run.checkpoints.retention import choose_deletions, find_best
from elastane.run.nouns.checkpoints import (
    CheckpointSummary,
    Retention,
    format_checkpoint_name,
    parse_checkpoint_age,
)


def build_summary(step, state="complete", resumed=0, **metrics):
    return CheckpointSummary(
        name=format_checkpoint_name(step, resumed), state=state, step=step, resumed=resumed, metrics=metrics
    )


some = st.lists(
    st.builds(
        lambda step, resumed, state, loss: build_summary(step, state, resumed, loss=loss),
        st.integers(0, 40),
        st.integers(0, 2),
        st.sampled_from(["complete", "complete", "unfinished", "damaged", "foreign"]),
        st.floats(allow_nan=True) | st.integers(0, 3),
    ),
    max_size=20,
    unique_by=lambda s: s.name,
)
rules = st.builds(
    Retention,
    last=st.none() | st.integers(1, 5),
    every=st.none() | st.integers(1, 10),
    best=st.none() | st.tuples(st.just("loss"), st.sampled_from(["min", "max"])),
)


@given(some, rules)
def test_checkpoints_that_a_rule_names_are_retained(found, wanted):
    gone = {deletion.name for deletion in choose_deletions(found, wanted)}
    complete = sorted((s for s in found if s.state == "complete"), key=lambda s: s.age)
    kept = [s for s in complete if s.name not in gone]
    assert kept[-(wanted.last or 1) :] == complete[-(wanted.last or 1) :]
    if wanted.every:
        assert all(s in kept for s in complete if s.step % wanted.every == 0)
    measured = [s.metrics["loss"] for s in complete if math.isfinite(s.metrics["loss"])]
    if wanted.best and measured:
        best = min(measured) if wanted.best[1] == "min" else max(measured)
        assert best in [s.metrics["loss"] for s in kept]
    if wanted == Retention():
        assert kept == complete


@given(some, rules)
def test_no_checkpoint_newer_than_the_newest_complete_one_is_deleted(found, wanted):
    gone = {deletion.name for deletion in choose_deletions(found, wanted)}
    newest = max((s.age for s in found if s.state == "complete"), default=None)
    if newest is None:
        assert not gone
    assert all(s.name not in gone for s in found if newest is not None and s.age >= newest)
    assert all(s.name not in gone for s in found if s.state == "foreign")


@given(some, rules)
def test_old_checkpoints_that_no_rule_names_are_deleted(found, wanted):
    gone = {deletion.name for deletion in choose_deletions(found, wanted)}
    newest = max((s.age for s in found if s.state == "complete"), default=(-1, -1))
    for s in found:
        if s.state in ("unfinished", "damaged") and s.age < newest:
            assert s.name in gone
    if wanted.last and not wanted.every and not wanted.best:
        assert sum(s.state == "complete" and s.name not in gone for s in found) <= wanted.last


@given(some, rules)
def test_pruning_twice_equals_pruning_once(found, wanted):
    gone = {deletion.name for deletion in choose_deletions(found, wanted)}
    assert choose_deletions([s for s in found if s.name not in gone], wanted) == ()


def test_every_deletion_has_its_reason():
    found = [build_summary(100), build_summary(150, "unfinished"), build_summary(200), build_summary(300)]
    chosen = choose_deletions(found, Retention(last=1, every=200))
    assert [(deletion.name, deletion.why) for deletion in chosen] == [
        ("step-00000100", "not among the last 1, nor at a multiple of 200 steps"),
        ("step-00000150", "is unfinished, and step-00000300 is newer"),
    ]


@pytest.mark.parametrize("wrong", [Retention(last=0), Retention(every=0), Retention(last=-1)])
def test_a_rule_that_retains_nothing_is_refused(wrong):
    with pytest.raises(ValueError, match="at least"):
        choose_deletions([build_summary(1)], wrong)


@given(st.integers(0, 10**10), st.integers(0, 20))
def test_the_name_of_a_checkpoint_has_its_age(step, resumed):
    assert parse_checkpoint_age(format_checkpoint_name(step, resumed)) == (resumed, step)


@pytest.mark.parametrize("name", ["step-1", "step-00000001.r0", "step-00000001.tmp", "logs", ""])
def test_another_name_has_no_age(name):
    assert parse_checkpoint_age(name) is None


@given(some, rules, st.data())
def test_the_checkpoint_with_which_the_present_attempt_began_is_retained(found, wanted, data):
    """A worker that joins later in that attempt reads it: without it a resumed run could not grow."""
    origin = data.draw(st.sampled_from([s.name for s in found] or [""]))
    gone = {deletion.name for deletion in choose_deletions(found, wanted)}
    keeping = msgspec.structs.replace(wanted, origin=origin)
    assert {deletion.name for deletion in choose_deletions(found, keeping)} == gone - {origin}


def test_a_metric_of_an_evaluation_is_found_without_its_prefix():
    """The loss of an evaluation does not hide that of the step."""

    found = [
        build_summary(1, **{"loss": 3.0, "evaluation.loss": 1.0, "evaluation.right": 9.0}),
        build_summary(2, **{"loss": 2.0, "evaluation.loss": 2.0, "evaluation.right": 5.0}),
    ]
    for metric, direction, step in (
        ("loss", "min", 2),
        ("evaluation.loss", "min", 1),
        ("right", "max", 1),
        ("evaluation.right", "min", 2),
    ):
        best = find_best(found, Retention(best=(metric, direction)))
        assert best is not None
        assert best.step == step
