"""One small cluster for each rule that random clusters do not reach, with its reason and its sentences."""

from datetime import UTC, datetime, time, timedelta
from typing import get_args

import pytest
from msgspec.structs import replace

from elastane.cluster.nouns import plans
from elastane.cluster.nouns.cluster import Draining, Holding, JobState, Snapshot
from elastane.cluster.nouns.config import (
    DeclaredEngine,
    Once,
    PriorityClass,
    Quota,
    Reservation,
    Team,
    Weekly,
)
from elastane.cluster.nouns.jobs import (
    DataPlacement,
    ElasticPolicy,
    JobSpec,
    JobTarget,
    RunPolicy,
    WorkerResources,
)
from elastane.cluster.nouns.pools import ENGINE_LABEL, Departure, Pool, Restriction
from elastane.cluster.scheduler.explanations import explain_decision
from elastane.cluster.scheduler.plan import plan
from elastane.cluster.scheduler.reason_texts import describe_reason
from elastane.cluster.scheduler.wording import format_money, make_sentence

NOW_S = datetime(2026, 11, 20, 8, 0, tzinfo=UTC).timestamp()  # a Friday
TEAMS = {"job-1": "t", "job-2": "t"}


def state(number=1, *, workers=0, low=1, high=8, pool="a", fields=None, **spec):
    policy = ElasticPolicy(min_replicas=low, max_replicas=high)
    spec = {"name": f"job-{number}", "script": "train.py", "team": "t", "elastic_policy": policy, **spec}
    holds = (Holding(pool=pool, workers=workers),) if workers else ()
    return JobState(
        number=number,
        spec=JobSpec(**spec),
        submitted_s=0.0,
        **{"holds": holds, "started_s": 0.0 if workers else None, **(fields or {})},
    )


def decided(*jobs, devices=8, reservations=(), pools=None, engines=(), now_s=NOW_S):
    pools = pools or (Pool(name="a", device="h100", devices=devices, price=3.6),)
    made = plan(Snapshot(now_s=now_s, pools=pools, engines=engines, jobs=jobs, reservations=reservations))
    return made.decisions[0] if len(jobs) == 1 else made.decisions


def test_a_paused_job_gives_everything_back():
    decision = decided(state(workers=4, run_policy=RunPolicy(suspend=True)))
    assert (decision.action, decision.drain, decision.why) == ("preempt", {"a": 4}, (plans.Suspended(),))


@pytest.mark.parametrize(("notice_s", "drain_s"), [(None, 600.0), (30.0, 30.0), (900.0, 600.0)])
def test_workers_under_notice_leave_before_their_node(notice_s, drain_s):
    policy = ElasticPolicy(min_replicas=1, max_replicas=8, graceful_shutdown_timeout_in_seconds=600.0)
    gone_at_s = None if notice_s is None else NOW_S + notice_s
    pool = Pool(name="a", device="h100", devices=8, leaving=4, gone_at_s=gone_at_s)
    decision = decided(state(workers=8, elastic_policy=policy), pools=(pool,))
    assert (decision.drain, decision.drain_s) == ({"a": 4}, drain_s)


@pytest.mark.parametrize("cause", get_args(plans.Cause))
def test_an_ending_job_gives_all_workers_back_with_a_reason(cause):
    decision = decided(state(workers=4, fields={"ends": cause}))
    assert (decision.action, decision.drain, decision.why) == (
        "preempt",
        {"a": 4},
        (plans.Ends(cause=cause),),
    )
    assert "paused" not in " ".join(explain_decision(decision, TEAMS))


def test_a_crashed_job_is_retried_at_its_time():
    decision = decided(state(fields={"retry_at_s": NOW_S + 5}))
    assert (decision.action, decision.why) == ("wait", (plans.RetryLater(at_s=NOW_S + 5),))
    assert decided(state(fields={"retry_at_s": NOW_S})).action == "start"


def test_a_job_that_has_spent_its_budget_stops():
    decision = decided(state(workers=4, budget=10.0, fields={"spent": 10.5}))
    assert (decision.action, decision.why) == ("preempt", (plans.BudgetSpent(spent=10.5, budget=10.0),))


def test_a_job_grows_only_as_far_as_its_budget_lasts_to_the_end():
    # A worker-second costs 0.001; at speed(n) = n / (0.1 + 0.01 n) the rest costs 10 * (0.1 + 0.01 n).
    speeds = ((1, 1 / 0.11), (4, 4 / 0.14))
    decision = decided(state(budget=1.45, fields={"speeds": speeds, "remaining": 10_000.0}))
    assert decision.workers == {"a": 4}
    assert isinstance(decision.ceiling, plans.BudgetAllows)


def test_a_job_that_has_its_throughput_does_not_grow():
    speeds = ((1, 10.0), (4, 40.0))
    decision = decided(state(target=JobTarget(throughput=30.0), fields={"speeds": speeds}))
    assert (decision.workers, decision.ceiling) == ({"a": 3}, plans.TargetMet(workers=3, throughput=30.0))


@pytest.mark.parametrize(("throughput", "workers"), [(36.0, 4), (40.0, 4), (44.0, 4), (49.0, 5), (27.0, 3)])
def test_a_size_that_gives_the_target_within_a_tenth_is_kept(throughput, workers):
    target = JobTarget(throughput=throughput)
    decision = decided(state(workers=4, target=target, fields={"speeds": ((1, 10.0), (4, 40.0))}))
    assert decision.workers == {"a": workers}
    assert decision.ceiling == plans.TargetMet(workers=workers, throughput=throughput)


@pytest.mark.parametrize("speed", [39.0, 40.0, 41.0])
def test_a_size_is_kept_if_the_budget_hardly_depends_on_it(speed):
    # A worker-second costs 0.001, and the rest about 1 at any size: noise affords all sizes or none.
    fields = {"speeds": ((1, 10.0), (4, speed)), "remaining": 10_000.0}
    assert decided(state(workers=4, budget=1.0, fields=fields)).action == "keep"


@pytest.mark.parametrize(("remaining", "workers"), [(3700.0, 4), (4300.0, 4), (5000.0, 5)])
def test_a_size_that_meets_the_deadline_within_a_tenth_is_enough(remaining, workers):
    deadline, speeds = datetime.fromtimestamp(NOW_S + 100, UTC), ((1, 10.0), (8, 80.0))
    hurried = state(1, workers=4, deadline=deadline, fields={"speeds": speeds, "remaining": remaining})
    mine, _ = decided(hurried, state(2, workers=4, fields={"speeds": speeds}))
    assert mine.entitled == workers


def test_a_job_that_would_be_late_grows_before_others_of_its_priority():
    speeds = ((1, 10.0), (8, 80.0))
    deadline = datetime.fromtimestamp(NOW_S + 100, UTC)
    late = state(2, deadline=deadline, fields={"speeds": speeds, "remaining": 6000.0})
    calm, hurried = decided(state(1, fields={"speeds": speeds}), late)
    assert (calm.workers, hurried.workers) == ({"a": 2}, {"a": 6})


def test_jobs_shrink_before_a_reservation_begins_and_grow_after_it():
    hours = Weekly(start=time(9), end=time(18), zone="UTC")
    inference = Reservation(name="inference", pool="a", devices=6, when=hours, announced_ahead_s=900)
    grown = state(workers=8)
    quarter_to_s = NOW_S + 45 * 60
    assert decided(grown, reservations=(inference,), now_s=quarter_to_s - 1).action == "keep"
    decision = decided(grown, reservations=(inference,), now_s=quarter_to_s)
    assert (decision.action, decision.workers) == ("shrink", {"a": 2})
    why = plans.Reserved(reservation="inference", pool="a", devices=6, at_s=NOW_S + 3600)
    assert decision.why == (why,)
    said = "From 2026-11-20 09:00:00 UTC on, 6 devices of a belong to the reservation inference."
    assert said in explain_decision(decision, TEAMS)
    small = state(workers=2)
    assert decided(small, reservations=(inference,), now_s=NOW_S + 10 * 3600 + 1).workers == {"a": 8}


@pytest.mark.parametrize(("before_s", "drain_s"), [(900.0, 600.0), (60.0, 60.0), (-60.0, 600.0)])
def test_workers_leave_before_a_reservation_begins(before_s, drain_s):
    policy = ElasticPolicy(min_replicas=1, max_replicas=8, graceful_shutdown_timeout_in_seconds=600.0)
    hours = Weekly(start=time(9), end=time(18), zone="UTC")
    inference = Reservation(name="inference", pool="a", devices=6, when=hours, announced_ahead_s=900)
    grown, now_s = state(workers=8, elastic_policy=policy), NOW_S + 3600 - before_s
    decision = decided(grown, reservations=(inference,), now_s=now_s)
    assert (decision.drain, decision.drain_s) == ({"a": 6}, drain_s)


def test_nothing_new_is_put_on_devices_that_a_reservation_needs_soon():
    start = datetime.fromtimestamp(NOW_S + 1200, UTC)
    soon = Reservation(name="r", pool="a", devices=6, when=Once(start=start, end=start + timedelta(hours=1)))
    assert decided(state(workers=2), reservations=(soon,)).action == "keep"
    assert decided(state(workers=8), reservations=(soon,)).action == "keep"


def test_the_explanation_of_a_waiting_job_names_the_reservation():
    now = datetime.fromtimestamp(NOW_S, UTC)
    hours = Once(start=now - timedelta(hours=1), end=now + timedelta(hours=1))
    inference = Reservation(name="inference", pool="a", devices=6, when=hours)
    decision = decided(state(1, workers=2, low=2), state(2), reservations=(inference,))
    room, reserved = decision[1].why
    assert isinstance(room, plans.NoRoom)
    assert reserved == plans.Reserved(reservation="inference", pool="a", devices=6, at_s=NOW_S - 3600)
    assert "belong to the reservation inference" in " ".join(explain_decision(decision[1], TEAMS))


def test_a_reservation_over_midnight_of_the_day_before_still_holds():
    night = Weekly(days=("thu",), start=time(22), end=time(9), zone="UTC")
    nightly = Reservation(name="night", pool="a", devices=8, when=night, announced_ahead_s=0)
    waits = decided(state(), reservations=(nightly,))
    began_s = NOW_S - 10 * 3600
    assert waits.why[1:] == (plans.Reserved(reservation="night", pool="a", devices=8, at_s=began_s),)


def reservation(devices, *, hours=1.0, pool="a"):
    """Return a reservation of this many devices for three hours, that begins in this many hours."""
    start = datetime.fromtimestamp(NOW_S, UTC) + timedelta(hours=hours)
    when = Once(start=start, end=start + timedelta(hours=3))
    return Reservation(name="r", pool=pool, devices=devices, when=when, announced_ahead_s=0)


@pytest.mark.parametrize("hours", [-1, 0.1])
def test_a_job_that_does_not_fit_beside_a_reservation_waits_for_its_end(hours):
    decision = decided(state(low=4), reservations=(reservation(6, hours=hours),))
    room, reserved = decision.why
    assert room == plans.NoRoom(pool="a", need=4, room=2, node=None)
    assert reserved == plans.Reserved(reservation="r", pool="a", devices=6, at_s=NOW_S + hours * 3600)
    later_s = NOW_S + 4 * 3600
    assert decided(state(low=4), reservations=(reservation(6, hours=hours),), now_s=later_s).action == "start"


def test_a_quota_that_shrinks_under_a_reservation_is_not_named_as_the_limit():
    teams = tuple(
        Team(name=name, quotas=(Quota(pool="a", nominal_quota=4, borrowing_limit=0),)) for name in ("t", "u")
    )
    pools = (Pool(name="a", device="h100", devices=8),)
    calendar = (reservation(6, hours=0),)
    waits = state(low=4, high=4)
    made = plan(Snapshot(now_s=NOW_S, pools=pools, jobs=(waits,), teams=teams, reservations=calendar))
    said = explain_decision(made.decisions[0], TEAMS)
    assert "It needs 4 devices of a, and 1 is left for it." in said
    assert "6 devices of a belong to the reservation r" in " ".join(said)
    assert not any("quota" in sentence for sentence in said)


def test_all_reservations_in_the_way_are_named():
    pools = (Pool(name="a", device="h100", devices=8), Pool(name="b", device="h100", devices=2))
    room, reserved = decided(state(low=4), pools=pools, reservations=(reservation(8, hours=0),)).why
    assert (room.pool, reserved.pool) == ("b", "a")


def test_a_job_that_waits_for_the_end_of_a_reservation_holds_no_place():
    old, young = decided(state(1, low=4), state(2, low=1), reservations=(reservation(6, hours=0),))
    assert (old.action, young.workers) == ("wait", {"a": 2})


def test_a_job_that_could_get_no_device_is_not_advised_a_minimum_of_zero():
    assert explain_decision(decided(state(low=2), devices=0), TEAMS) == (
        "job-1 waits.",
        "Its minimum needs 2 devices; it could get none even without any other job.",
        "This changes with more quota or devices.",
    )


def test_a_minimum_goes_to_on_demand_devices_and_growth_to_spot():
    pools = (
        Pool(name="spot", device="h100", devices=4, spot=True, price=1.0),
        Pool(name="own", device="h100", devices=4, price=3.0),
    )
    assert decided(state(low=2, high=4, spot=True), pools=pools).workers == {"spot": 2, "own": 2}
    assert decided(state(low=2, high=8, spot=False), pools=pools).workers == {"own": 4}


def test_lost_spot_workers_fall_back_to_idle_devices():
    pools = (
        Pool(name="spot", device="h100", devices=0, spot=True, price=1.0),
        Pool(name="own", device="h100", devices=8, price=3.0),
    )
    lost = state(workers=4, high=4, pool="spot", spot=True)
    decision = decided(lost, pools=pools)
    assert (decision.action, decision.workers, decision.drain) == ("move", {"own": 4}, {"spot": 4})
    assert decision.why == (plans.CapacityGone(pool="spot", devices=4),)


def test_workers_of_one_job_are_of_one_kind_at_one_site():
    pools = tuple(
        Pool(name=name, device=device, devices=2, site=site)
        for name, device, site in (("a", "h100", "x"), ("b", "a100", "x"), ("c", "h100", "y"))
    )
    assert len(decided(state(low=2), pools=pools).workers) == 1
    assert isinstance(decided(state(low=3), pools=pools).why[0], plans.NeverFits)


def test_workers_of_one_job_are_in_one_engine():
    pools = (
        Pool(name="a", device="h100", devices=2),
        Pool(name="b", device="h100", devices=2, engine="hpc"),
        Pool(name="c", device="h100", devices=2, engine="hpc", site="hpc"),
        # Its site has the name of an engine, which makes it no pool of that engine.
        Pool(name="d", device="h100", devices=2, site="hpc"),
    )
    assert decided(state(low=2), pools=pools).workers == {"a": 2}
    assert isinstance(decided(state(low=3), pools=pools).why[0], plans.NeverFits)
    beside = replace(pools[1], name="e")
    assert decided(state(low=4), pools=(*pools, beside)).workers == {"b": 2, "e": 2}


def test_an_engine_without_a_site_is_in_no_region():
    far = Pool(name="a", device="h100", devices=2, engine="eu")
    wanted = state(low=2, data=DataPlacement(regions=("eu",)))
    assert decided(wanted, pools=(far,)).why == (plans.NoSuchPool(),)
    assert decided(wanted, pools=(replace(far, site="eu"),)).workers == {"a": 2}


def test_a_job_can_ask_for_one_engine():
    here = Pool(name="a", device="h100", devices=4, labels={ENGINE_LABEL: "hpc"})
    pools = (here, Pool(name="b", device="h100", devices=2, engine="hpc"))
    wanted = state(low=2, data=DataPlacement(labels={ENGINE_LABEL: "hpc"}))
    assert decided(wanted, pools=pools).workers == {"b": 2}
    # A pool cannot say that it is of another engine.
    assert decided(wanted, pools=(here,)).why == (plans.NoSuchPool(),)


def test_a_job_with_an_image_goes_only_to_engines_that_run_it():
    pools = (
        Pool(name="a", device="h100", devices=4),
        Pool(name="b", device="h100", devices=4, engine="ray"),
        Pool(name="c", device="h100", devices=2, engine="hpc", price=9.0),
    )
    ray, hpc = DeclaredEngine(name="ray", kind="ray"), DeclaredEngine(name="hpc", kind="slurm")
    job = state(low=1, image="team/train:1")
    waits = decided(job, pools=pools, engines=(ray, hpc))
    assert waits.why == (plans.NoSuchPool(image="team/train:1"),)
    said = " ".join(explain_decision(waits, TEAMS))
    assert "none belongs to an engine that can run its image team/train:1." in said
    assert "This changes with a pool of an engine that runs it" in said
    able = replace(hpc, options={"container": "pyxis"})
    assert decided(job, pools=pools, engines=(ray, able)).workers == {"c": 2}
    # Without an image it takes the cheapest one.
    assert decided(state(low=4, high=4), pools=pools, engines=(ray, able)).workers == {"a": 4}
    # It would wait without its image too.
    far = state(image="team/train:1", data=DataPlacement(regions=("moon",)))
    assert decided(far, pools=pools, engines=(ray,)).why == (plans.NoSuchPool(),)


H100 = Pool(name="b", device="h100", devices=8)
A100 = Pool(name="c", device="a100", devices=8)


@pytest.mark.parametrize(
    "pools",
    [
        (Pool(name="a", device="h100", devices=8, site="us"), replace(A100, site="eu")),
        (Pool(name="a", device="h100", devices=8, site="us"), replace(H100, site="eu")),
        (replace(A100, site="eu"),),
    ],
    ids=["beside another kind", "beside another site", "removed"],
)
def test_a_job_gives_way_and_keeps_kind_and_site_when_its_pool_no_longer_suits(pools):
    decision = decided(state(workers=4, low=2, data=DataPlacement(regions=("eu",))), pools=pools)
    assert (decision.action, decision.workers, decision.drain) == ("preempt", {}, {"a": 4})
    assert decision.drain_s > 0
    assert decision.why == (plans.PoolChanged(pool="a", workers=4),)
    assert explain_decision(decision, TEAMS)[:2] == (
        "job-1 gives back its 4 workers and keeps its place in the queue.",
        "4 of its workers are in a, which was removed or no longer has what its workers need.",
    )


def test_a_job_starts_elsewhere_only_when_its_workers_have_left_the_removed_pool():
    leaving = Draining(pool="a", workers=4, deadline_s=NOW_S + 10)
    decision = decided(state(low=2, fields={"draining": (leaving,)}), pools=(A100,))
    assert (decision.action, decision.why) == ("wait", (plans.OwnDrain(workers=4),))
    assert decided(state(low=2), pools=(A100,)).action == "start"


@pytest.mark.parametrize("kinds", [(), ("h100",)])
def test_a_job_that_loses_one_of_its_pools_moves_to_where_most_of_it_is(kinds):
    holds = (Holding(pool="a", workers=1), Holding(pool="b", workers=3))
    wanted = WorkerResources(kinds=kinds)
    running = state(low=2, high=4, resources_per_worker=wanted, fields={"holds": holds, "started_s": 0.0})
    decision = decided(running, pools=(Pool(name="a", device="a100", devices=8), H100, A100))
    assert (decision.action, decision.workers, decision.drain) == ("move", {"b": 4}, {"a": 1})
    assert decision.why == (plans.PoolChanged(pool="a", workers=1),)


def test_a_reservation_counts_from_its_own_announcement_on_not_from_anothers():
    def reserved(name, hours, ahead_s):
        start = datetime.fromtimestamp(NOW_S, UTC) + timedelta(hours=hours)
        when = Once(start=start, end=start + timedelta(hours=1))
        return Reservation(name=name, pool="a", devices=3, when=when, announced_ahead_s=ahead_s)

    calendar = (reserved("soon", 1, 600.0), reserved("later", 3, 4 * 3600.0))
    decision = decided(state(workers=8), reservations=calendar)
    assert decision.workers == {"a": 5}
    (why,) = [one for one in decision.why if isinstance(one, plans.Reserved)]
    assert why.reservation == "later"


def test_a_resize_that_does_not_earn_back_its_cost_is_not_made():
    held = {"resize_s": 300.0, "holds": (Holding(pool="a", workers=7),), "started_s": 0.0}
    decision = decided(state(fields=held))
    assert decision.action == "keep"
    assert decision.why == (plans.ResizeTooDear(cost_s=300.0, horizon_s=600.0),)
    cheap = decided(state(fields={**held, "resize_s": 1.0}))
    assert cheap.workers == {"a": 8}


@pytest.mark.parametrize(("resized_s", "action"), [(NOW_S - 5, "keep"), (NOW_S - 500, "shrink")])
def test_a_new_size_is_measured_before_it_is_judged(resized_s, action):
    useless = {"speeds": ((1, 100.0), (2, 101.0)), "resized_s": resized_s}
    assert decided(state(workers=2, fields=useless)).action == action


def stopped(*, ran_s):
    """Return the decision about a job that gave workers back for the fourth time, by a stop a second ago."""
    past = {"setbacks": 4, "resized_s": NOW_S - 1, "started_s": NOW_S - 1 - ran_s}
    return decided(state(fields=past))


def test_a_job_that_is_stopped_repeatedly_soon_after_its_start_waits_longer():
    decision = stopped(ran_s=100)
    # 60 s are doubled three times; the first 60 s are free.
    assert decision.why == (plans.StoppedOften(until_s=NOW_S - 101 + 480 - 60),)
    (said,) = [one for one in explain_decision(decision, TEAMS) if "it waits until" in one]
    assert said.startswith("It was stopped a moment ago, and had to give workers back more than once")


def test_a_job_that_is_stopped_for_the_first_time_may_restart_at_once():
    past = {"setbacks": 1, "resized_s": NOW_S - 1, "started_s": NOW_S - 2}
    assert decided(state(fields=past)).action == "start"


def test_a_spent_budget_is_named_before_a_rest_that_ends_sooner():
    past = {"setbacks": 4, "resized_s": NOW_S - 1, "started_s": NOW_S - 100, "spent": 2.0}
    assert decided(state(budget=1.0, fields=past)).why == (plans.BudgetSpent(spent=2.0, budget=1.0),)


def test_a_job_that_ran_for_long_may_restart_at_once():
    assert stopped(ran_s=1000).action == "start"


def test_a_job_without_a_change_has_the_reason_why_it_is_not_larger():
    assert explain_decision(decided(state(workers=8)), TEAMS) == (
        "job-1 keeps 8 workers in a.",
        "Its elastic policy allows no more than 8 workers.",
        "This changes with a higher maxReplicas: `elastane scale` of a job, --workers of a run.",
    )


def test_a_small_budget_is_not_shown_as_zero():
    told = explain_decision(decided(state(budget=0.001, fields={"spent": 0.0029})), TEAMS)
    assert "It has spent 0.0029 of its budget of 0.001." in told
    assert "This changes with a higher budget: `elastane amend --budget`." in told
    assert [format_money(cost) for cost in (0, 0.004, 0.25, 1344.5)] == ["0.00", "0.004", "0.25", "1344.50"]


@pytest.mark.parametrize(
    ("teams", "who"),
    [(TEAMS, "job-2"), ({"job-1": "t", "job-2": "u"}, "a job of another team")],
)
def test_a_job_of_another_team_is_not_named(teams, who):
    taken = plans.GivesWay(job="job-2", pool="a", devices=2, because="minimum")
    held = plans.NoRoom(pool="a", need=2, room=0, node=None, held_for="job-2")
    decision = plans.Decision(job="job-1", action="wait", why=(taken,), ceiling=held)
    _, why, ceiling, *_ = explain_decision(decision, teams)
    assert why == f"2 devices of a go to {who}, which waits for its minimum."
    assert ceiling.endswith(f"none is left for it; {who} has waited for a long time and holds its place.")


@pytest.mark.parametrize(
    ("began", "holds"),
    [
        ({"submitted_s": 0.0}, True),
        ({"submitted_s": NOW_S - 1.0}, False),
        ({"submitted_s": 0.0, "started_s": NOW_S - 5000.0, "resized_s": NOW_S - 1.0}, False),
        ({"submitted_s": 0.0, "started_s": NOW_S - 5000.0, "resized_s": NOW_S - 700.0}, True),
        ({"submitted_s": 0.0, "retry_at_s": NOW_S - 1.0}, False),
    ],
)
def test_a_job_holds_its_place_after_a_long_wait_without_workers(began, holds):
    small = replace(state(3, low=1), submitted_s=NOW_S - 1.0)
    jobs = (state(1, workers=3, low=3, high=3), replace(state(2, low=8), **began), small)
    _, large, small = decided(*jobs)
    assert large.action == "wait"
    assert small.action == ("wait" if holds else "start")


def test_a_job_that_holds_its_place_need_not_be_older_than_those_it_stops():
    older, younger = state(2, low=3), state(5, low=8, priority_class="high")
    jobs = (state(1, workers=5, low=5, high=5, priority_class="high"), older, younger)
    pools, high = (Pool(name="a", device="h100", devices=8),), PriorityClass(name="high", value=1)
    made = plan(Snapshot(now_s=NOW_S, pools=pools, jobs=jobs, priorities=(high,)))
    told = explain_decision(made.decisions[1], dict.fromkeys(("job-1", "job-2", "job-5"), "t"))
    assert "job-5 has waited for a long time and holds its place." in told[1]


def test_missing_devices_are_explained_by_the_nodes_that_took_them():
    drained = Departure(node="n1", pool="a", how="drain", why="new disk")
    elsewhere = Departure(node="n2", pool="b", how="failed")
    found = plan(
        Snapshot(
            now_s=NOW_S,
            pools=(Pool(name="a", device="h100", devices=8, leaving=4),),
            jobs=(state(workers=8),),
            departures=(drained, elsewhere),
        )
    )
    (why,) = found.decisions[0].why
    assert why == plans.CapacityGone(pool="a", devices=4, nodes=(drained,))
    many = tuple(Departure(node=f"n{n}", pool="a", how="failed") for n in range(5))
    said = describe_reason(plans.CapacityGone(pool="a", devices=4, nodes=many), str)
    assert said.endswith("granted: node n0 has failed, node n1 has failed, node n2 has failed, and 2 more")


@pytest.mark.parametrize("kind", plans.Why.__args__)
def test_every_reason_has_a_sentence(kind):
    gone = (Departure(node="n1", pool="x", how="drain"),)
    values = {"str": "x", "int": 3, "float": 0.5, "bool": True, "str | None": "x", "tuple": gone}
    limit = Restriction(pool="x", limit=3, trigger="x", why="x above 3")
    values |= {"Restriction": limit, "elastane.cluster.nouns.pools.Restriction | None": limit}
    hints = {name: str(getattr(hint, "__name__", hint)) for name, hint in kind.__annotations__.items()}
    enums = {get_args(plans.Because): "owner", get_args(plans.Cause): "time"}
    fields = {
        name: enums.get(get_args(kind.__annotations__[name])) or values[hint] for name, hint in hints.items()
    }
    said = make_sentence(describe_reason(kind(**fields), str))
    assert said.endswith(".")
    assert said[0].isupper() or said[0] == "3"
