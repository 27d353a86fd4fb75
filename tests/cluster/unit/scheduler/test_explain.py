"""The sentences about waiting jobs."""

import msgspec
import pytest

from elastane.cluster.nouns.cluster import Holding, JobState, Snapshot
from elastane.cluster.nouns.config import PriorityClass, Quota, SchedulingRules, Team
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec
from elastane.cluster.nouns.plans import CapacityGone, NoRoom, OwnedByOthers, Protected, Restricted
from elastane.cluster.nouns.pools import Pool, Restriction
from elastane.cluster.scheduler.explanations import explain_decision
from elastane.cluster.scheduler.plan import plan
from elastane.cluster.scheduler.run_explanations import explain_run_decision
from elastane.cluster.scheduler.speed_model import select_comparable_speeds

START_S = 1000.0
PRIORITIES = (
    PriorityClass(name="low", value=-1),
    PriorityClass(name="normal", value=0, default=True),
    PriorityClass(name="high", value=1),
)


def job(number, name, low, *, team="t", priority="normal", workers=0, started_s=None, high=None):
    policy = ElasticPolicy(min_replicas=low, max_replicas=high or low)
    holds = (Holding(pool="local", workers=workers),) if workers else ()
    spec = JobSpec(name=name, script="/t.py", team=team, priority_class=priority, elastic_policy=policy)
    return JobState(
        number=number, spec=spec, submitted_s=START_S, holds=holds, started_s=started_s, resized_s=started_s
    )


def cluster(*jobs, devices=2, teams=(), now_s=START_S + 10, **kwargs):
    pool = Pool(name="local", device="cpu", devices=devices, devices_per_node=max(1, devices))
    return Snapshot(
        now_s=now_s,
        pools=(pool,),
        teams=tuple(teams),
        priorities=PRIORITIES,
        rules=SchedulingRules(min_run_time_s=300),
        jobs=jobs,
        **kwargs,
    )


def decided(snapshot, name):
    return next(one for one in plan(snapshot).decisions if one.job == name)


def words(snapshot, name):
    teams = {one.name: one.spec.team for one in snapshot.jobs}
    return explain_decision(decided(snapshot, name), teams)


def kinds(decision):
    return [type(why) for why in decision.why]


# -- protected jobs ------------------------------------------------------------------------------------------


def protected(now_s=START_S + 10, *others):
    n1 = job(1, "n1", 2, priority="low", workers=2, started_s=START_S)
    return cluster(n1, job(2, "prod", 2, priority="high"), *others, now_s=now_s)


def test_the_explanation_of_a_waiting_job_names_the_protected_job_and_its_time():
    decision = decided(protected(), "prod")
    (why,) = [one for one in decision.why if isinstance(one, Protected)]
    assert (why.job, why.by, why.pool, why.devices, why.until_s) == ("n1", "prod", "local", 2, START_S + 300)
    (sentence,) = [one for one in words(protected(), "prod") if "protected" in one]
    assert "n1 is protected" in sentence
    assert "Until 1970-01-01 00:21:40 UTC" in sentence
    assert "prod may take 2 devices of local" in sentence


def test_protection_ends_at_the_named_time():
    until_s = START_S + 300
    assert decided(protected(until_s - 1), "prod").action == "wait"
    later = protected(until_s)
    assert decided(later, "n1").action == "preempt"
    assert decided(later, "prod").entitled == 2


def test_a_protected_job_of_another_team_is_not_named():
    n1 = job(1, "secret", 2, team="other", priority="low", workers=2, started_s=START_S)
    told = words(cluster(n1, job(2, "prod", 2, priority="high")), "prod")
    assert any("is protected" in one for one in told)
    assert not any("secret" in one for one in told)


def test_two_waiting_jobs_are_not_promised_the_same_devices():
    snapshot = protected(START_S + 10, job(3, "prod2", 2, priority="high"))
    told = [name for name in ("prod", "prod2") if Protected in kinds(decided(snapshot, name))]
    assert told == ["prod"]


def test_a_protected_job_of_the_same_priority_is_not_named():
    n1 = job(1, "n1", 2, priority="high", workers=2, started_s=START_S)
    assert kinds(decided(cluster(n1, job(2, "prod", 2, priority="high")), "prod")) == [NoRoom]


def test_protection_is_not_named_if_its_end_would_not_be_enough():
    n1 = job(1, "n1", 1, priority="low", workers=1, started_s=START_S)
    n2 = job(2, "n2", 1, priority="high", workers=1, started_s=-1e6)
    decision = decided(cluster(n1, n2, job(3, "prod", 2, priority="high")), "prod")
    assert kinds(decision) == [NoRoom]


# -- what others own -----------------------------------------------------------------------------------------


def owned(*, priority="high"):
    teams = (
        Team(name="research", quotas=(Quota(pool="local", nominal_quota=2, lending_limit=0),)),
        Team(name="prod", quotas=()),
    )
    theirs = job(1, "paper", 2, team="research", priority="low", workers=2, started_s=-1e6)
    return cluster(theirs, job(2, "serve", 2, team="prod", priority=priority), teams=teams, devices=3)


def test_the_explanation_of_a_high_priority_says_that_it_takes_nothing_from_another_owner():
    snapshot = owned()
    # Without quotas its minimum would fit.
    lent = Team(name="research", quotas=(Quota(pool="local", nominal_quota=2),))

    snapshot = msgspec.structs.replace(snapshot, teams=(lent, snapshot.teams[1]))
    decision = decided(snapshot, "serve")
    assert decision.action == "wait"
    assert OwnedByOthers(pool="local", devices=2) in decision.why
    told = words(snapshot, "serve")
    assert any("priority takes nothing from another owner" in one for one in told)
    assert any("quota of local for its own team" in one for one in told)
    assert not any("paper" in one or "research" in one for one in told)


def test_the_explanation_of_a_low_priority_does_not_name_owners():
    assert OwnedByOthers not in kinds(decided(owned(priority="low"), "serve"))


# -- what triggers leave -------------------------------------------------------------------------------------

BUSY = Restriction(pool="local", limit=1, trigger="busy", why="qps above 100")


def limited(*jobs):
    snapshot = cluster(*jobs, devices=4, restrictions=(BUSY,))

    pool = msgspec.structs.replace(snapshot.pools[0], leaving=3)
    return msgspec.structs.replace(snapshot, pools=(pool,))


def test_the_explanation_of_a_shrink_names_the_trigger_and_its_rule():
    snapshot = limited(job(1, "train", 1, high=4, workers=4, started_s=-1e6))
    decision = decided(snapshot, "train")
    assert decision.action == "shrink"
    assert CapacityGone in kinds(decision)
    assert any(
        "the trigger busy (qps above 100) leaves jobs 1 device" in one for one in words(snapshot, "train")
    )


def test_the_explanation_of_a_waiting_job_names_the_trigger():
    snapshot = limited(job(1, "first", 1, workers=1, started_s=-1e6), job(2, "train", 2))
    decision = decided(snapshot, "train")
    assert Restricted(restriction=BUSY) in decision.why
    assert any("trigger busy" in one for one in words(snapshot, "train"))


def test_the_explanation_names_a_reported_capacity():
    snapshot = limited(job(1, "train", 1, high=4, workers=4, started_s=-1e6))
    reported = msgspec.structs.replace(snapshot, restrictions=(Restriction(pool="local", limit=1),))
    told = " ".join(words(reported, "train"))
    assert "reported capacity" in told
    assert "trigger" not in told


# -- a run of its own ----------------------------------------------------------------------------------------

FOREIGN = ("local", "quota", "cluster", "team", "pool", "lends", "maxReplicas", "elastane scale")


@pytest.mark.parametrize(
    "state",
    [
        job(1, "run", 1, high=4),
        job(1, "run", 1, high=2, workers=2, started_s=-1e6),
        job(1, "run", 1, high=4, workers=1, started_s=-1e6),
        job(1, "run", 1, high=4, workers=2, started_s=-1e6),
        job(1, "run", 1, high=4, workers=4, started_s=-1e6),
        job(1, "run", 3, high=4),
    ],
    ids=["starts", "at its maximum", "grows", "keeps", "shrinks", "never fits"],
)
def test_reasons_of_a_run_name_this_machine_and_no_cluster(state):
    told = " ".join(explain_run_decision(decided(cluster(state), "run"), {"run": "local"}))
    assert "this machine" in told.lower()
    assert not [word for word in FOREIGN if word in told]


# -- speeds --------------------------------------------------------------------------------------------------


def test_a_speed_that_was_measured_briefly_is_not_compared():
    speeds = ((1, 100.0), (2, 60.0))
    assert select_comparable_speeds(speeds, (0.5, 0.0)) == (((1, 100.0),), (0.5,))
    assert select_comparable_speeds(speeds, ()) == (speeds, (1.0, 1.0))


def test_one_of_several_brief_speeds_counts():
    assert select_comparable_speeds(((1, 100.0), (2, 60.0)), (0.0, 0.0)) == (((2, 60.0),), ())
