"""Meaning of the options about checkpoints, and the errors for invalid ones."""

import pytest

from elastane.cli.runs.run_options import RunOptions
from elastane.cli.runs.run_spec import build_checkpoint_policy
from elastane.common.errors import BadInput
from elastane.run.nouns.checkpoint_policy import CheckpointSettings, describe_policy, parse_checkpoint_policy
from elastane.run.nouns.spec import CheckpointPolicy


def read(options: RunOptions) -> CheckpointPolicy | None:
    return build_checkpoint_policy(CheckpointSettings(), options)


@pytest.mark.parametrize(
    ("typed", "every_s", "every_steps"),
    [
        ("auto", None, None),
        ("10 min", 600.0, None),
        ("1.5h", 5400.0, None),
        ("2 hours", 7200.0, None),
        ("30s", 30.0, None),
        ("30m", 1800.0, None),
        ("1 d", 86400.0, None),
        (" 1 second ", 1.0, None),
        ("500 steps", None, 500),
        ("1 step", None, 1),
    ],
)
def test_an_interval_is_a_duration_or_a_number_of_steps(typed, every_s, every_steps):
    policy = read(RunOptions(checkpoint_every=typed))
    assert (policy.every_s, policy.every_steps, policy.auto) == (every_s, every_steps, typed == "auto")


def test_never_means_no_policy():
    assert read(RunOptions(checkpoint_every="never", keep_last=0)) is None


def test_never_with_an_event_means_only_at_that_event():
    policy = read(RunOptions(checkpoint_every="never", checkpoint_at="epoch"))
    assert policy is not None
    assert (policy.every_s, policy.every_steps, policy.auto, policy.each_epoch) == (None, None, False, True)


@pytest.mark.parametrize(
    "typed", ["", "10", "min", "0 s", "0 steps", "1.5 steps", "-1 min", "10 years", "Auto"]
)
def test_an_invalid_interval_is_refused(typed):
    with pytest.raises(BadInput, match="neither a duration nor a number of steps") as refused:
        read(RunOptions(checkpoint_every=typed))
    assert "500 steps" in refused.value.do


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("", (False, False)),
        ("epoch", (True, False)),
        ("evaluation", (False, True)),
        (" evaluation , epoch,", (True, True)),
    ],
)
def test_events_are_a_list(typed, expected):
    policy = read(RunOptions(checkpoint_at=typed))
    assert (policy.each_epoch, policy.each_evaluation) == expected


def test_an_unknown_event_is_refused():
    with pytest.raises(BadInput, match=r"invalid --checkpoint-at: 'epochs'"):
        read(RunOptions(checkpoint_at="epochs"))


def test_the_retention_options_become_the_policy():
    typed = RunOptions(
        checkpoint_every="1 h", checkpoint_dir="s3://b/p", keep_last=3, keep_every=100, keep_best="a:b:max"
    )
    assert read(typed) == CheckpointPolicy(
        every_s=3600.0, url="s3://b/p", keep_last=3, keep_every=100, keep_best=("a:b", "max")
    )


@pytest.mark.parametrize("typed", [{"keep_last": 0}, {"keep_every": 0}])
def test_keeping_fewer_than_one_is_refused(typed):
    with pytest.raises(BadInput, match="0 is less than 1"):
        read(RunOptions(**typed))


@pytest.mark.parametrize("typed", ["loss", ":min", "loss:least", "loss:"])
def test_keep_best_without_a_metric_and_a_direction_is_refused(typed):
    with pytest.raises(BadInput, match="is not METRIC:min or METRIC:max"):
        read(RunOptions(keep_best=typed))


@pytest.mark.parametrize(
    "policy",
    [
        None,
        CheckpointPolicy(auto=True),
        CheckpointPolicy(every_s=0.1, url="s3://bucket/x", keep_last=3),
        CheckpointPolicy(every_s=1e9, each_evaluation=True, keep_every=7),
        CheckpointPolicy(every_steps=500, each_epoch=True, keep_best=("a:b", "max")),
        CheckpointPolicy(url="/somewhere"),
    ],
)
def test_a_policy_is_read_back_from_its_settings(policy):
    assert parse_checkpoint_policy(describe_policy(policy)) == policy
