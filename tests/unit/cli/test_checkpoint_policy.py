"""What the options about checkpoints mean, and which are refused in words."""

import pytest

from elastane.api.errors import BadInput
from elastane.api.spec import CheckpointPolicy
from elastane.cli.checkpoints.policy import CheckpointOptions, policy_of


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
def test_an_interval_is_of_time_or_of_steps(typed, every_s, every_steps):
    policy = policy_of(CheckpointOptions(every=typed))
    assert (policy.every_s, policy.every_steps, policy.auto) == (every_s, every_steps, typed == "auto")


def test_never_is_no_policy_at_all():
    assert policy_of(CheckpointOptions(every="never", keep_last=0)) is None


def test_never_beside_a_moment_is_at_that_moment_only():
    policy = policy_of(CheckpointOptions(every="never", at="epoch"))
    assert policy is not None
    assert (policy.every_s, policy.every_steps, policy.auto, policy.each_epoch) == (None, None, False, True)


@pytest.mark.parametrize(
    "typed", ["", "10", "min", "0 s", "0 steps", "1.5 steps", "-1 min", "10 years", "Auto"]
)
def test_an_interval_nobody_understands_is_refused(typed):
    with pytest.raises(BadInput, match="neither a duration nor a number of steps") as refused:
        policy_of(CheckpointOptions(every=typed))
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
def test_milestones_are_listed(typed, expected):
    policy = policy_of(CheckpointOptions(at=typed))
    assert (policy.each_epoch, policy.each_evaluation) == expected


def test_a_milestone_nobody_knows_is_refused():
    with pytest.raises(BadInput, match=r"--checkpoint-at 'epochs' is not understood"):
        policy_of(CheckpointOptions(at="epochs"))


def test_what_is_kept_is_passed_on():
    typed = CheckpointOptions(every="1 h", url="s3://b/p", keep_last=3, keep_every=100, keep_best="a:b:max")
    assert policy_of(typed) == CheckpointPolicy(
        every_s=3600.0, url="s3://b/p", keep_last=3, keep_every=100, keep_best=("a:b", "max")
    )


@pytest.mark.parametrize("typed", [{"keep_last": 0}, {"keep_every": 0}])
def test_at_least_one_is_kept(typed):
    with pytest.raises(BadInput, match="0 is less than 1"):
        policy_of(CheckpointOptions(**typed))


@pytest.mark.parametrize("typed", ["loss", ":min", "loss:least", "loss:"])
def test_the_best_has_a_metric_and_a_direction(typed):
    with pytest.raises(BadInput, match="is not METRIC:min or METRIC:max"):
        policy_of(CheckpointOptions(keep_best=typed))
