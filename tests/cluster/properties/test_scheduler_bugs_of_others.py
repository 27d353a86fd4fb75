"""Bugs of other schedulers; each test's name is the rule that holds here."""

from datetime import UTC, datetime, timedelta

from elastane.cluster.nouns.cluster import Draining, Snapshot
from elastane.cluster.nouns.config import Once, Reservation, Team
from elastane.cluster.nouns.plans import AwaitsRepair, DidNotArrive, DidNotReturn, Drains, GivesWay, NoRoom
from elastane.cluster.nouns.pools import Pool
from elastane.cluster.scheduler.plan import plan

from .scheduler_model import Cluster, by_job, dice, job, quota, replace, running
from .scheduler_strategies import PRIORITIES


def cluster(*jobs, devices=8, teams=(), now_s=10_000.0, **pool):
    return Snapshot(
        now_s=now_s,
        pools=(Pool(name="a", device="h100", devices=devices, **pool),),
        teams=teams,
        priorities=PRIORITIES,
        jobs=jobs,
    )


def sizes(made):
    return {decision.job: sum(decision.workers.values()) for decision in made.decisions}


def test_quota_is_not_leaked_when_the_old_size_ends_before_the_new_one_is_admitted():
    """kueue#11557."""
    world = Cluster(cluster(running(job(1, high=8, low=4), a=4), running(job(2, low=4), a=4)), dice(1))
    world.tick()
    world.snapshot = replace(world.snapshot, jobs=world.snapshot.jobs[:1])
    world.tick(100.0)
    assert world.of("job-1").workers == 8
    world.snapshot = replace(world.snapshot, jobs=())
    world.submit(job(3, low=8))
    world.tick()
    assert world.of("job-3").workers == 8


def test_a_job_that_replaces_workers_is_not_counted_twice():
    """Four of its workers leave with their nodes; four others start beside them if the quota is eight."""
    mine = running(job(1, "t", low=4, high=4), a=4)
    mine = replace(mine, holds=(replace(mine.holds[0], leaving=4),))
    teams = (Team(name="t", quotas=(quota("a", 8, borrow=0),)),)
    made = plan(cluster(mine, devices=16, leaving=4, teams=teams))
    assert (made.decisions[0].workers, made.decisions[0].drain) == ({"a": 4}, {"a": 4})
    tight = (Team(name="t", quotas=(quota("a", 4, borrow=0),)),)
    made = plan(cluster(mine, devices=16, leaving=4, teams=tight))
    assert made.decisions[0].workers == {}, "the quota is used until they are gone"


def test_nothing_is_held_for_ever_under_rapid_scaling():
    """kueue#11553."""
    world = Cluster(cluster(job(1, high=8), devices=8), dice(1))
    for size in (8, 1, 5, 2, 8, 1):
        policy = replace(world.of("job-1").spec.elastic_policy, max_replicas=size)
        world.change("job-1", elastic_policy=policy)
        world.tick(1.0)
    world.submit(job(2, low=7))
    for _ in range(4):
        world.tick()
    assert (world.of("job-1").workers, world.of("job-2").workers) == (1, 7)


def test_workers_that_never_arrive_are_given_back():
    """kueue#11553, too: granted workers that do not arrive are not held."""
    mine = running(job(1, high=8), a=8)
    holds = (replace(mine.holds[0], starting=4),)
    made = plan(cluster(replace(mine, holds=holds, starting_since_s=9_000.0), devices=8))
    assert made.decisions[0].workers == {"a": 4}
    assert made.decisions[0].why == (DidNotArrive(workers=4),)


def test_the_returned_workers_are_those_that_did_not_arrive():
    """Workers that train elsewhere are not drained for it: no worker would take their place."""
    mine = running(job(1, high=8), a=4, b=2)
    holds = (replace(mine.holds[0], starting=4), mine.holds[1])
    late = replace(mine, holds=holds, starting_since_s=9_000.0)
    snapshot = cluster(late)
    both = (*snapshot.pools, replace(snapshot.pools[0], name="b"))
    (made,) = plan(replace(snapshot, pools=both)).decisions
    assert (made.action, made.workers, made.drain) == ("shrink", {"b": 2}, {"a": 4})


def test_no_worker_starts_beyond_the_grant():
    """kueue#12045."""
    teams = (Team(name="t", quotas=(quota("a", 3, borrow=1),)),)
    made = plan(cluster(job(1, "t", high=8), devices=100, teams=teams))
    assert sizes(made) == {"job-1": 4}


def test_equal_timestamps_do_not_change_the_order():
    """kueue#11201, #12965: the number of submission decides, not the clock."""
    first, second = job(1, low=8, submitted_s=5.0), job(2, low=8, submitted_s=5.0)
    for order in ((first, second), (second, first)):
        assert sizes(plan(cluster(*order))) == {"job-1": 8, "job-2": 0}
    earlier_clock = replace(second, submitted_s=4.0)
    assert sizes(plan(cluster(first, earlier_clock))) == {"job-1": 8, "job-2": 0}


def test_devices_are_not_given_away_while_evicted_workers_still_run():
    """kueue#15661, #13914."""
    leaver = replace(job(1, low=8), draining=(Draining(pool="a", workers=8, deadline_s=10_060.0),))
    made = plan(cluster(leaver, job(2, low=4, priority="high")))
    decision = by_job(made)["job-2"]
    assert (decision.action, decision.why) == ("wait", (Drains(pool="a", devices=4),))
    gone = replace(leaver, draining=())
    assert by_job(plan(cluster(gone, job(2, low=4, priority="high"))))["job-2"].action == "start"


def test_a_job_does_not_go_up_and_down_at_once():
    """kueue#9329."""
    shrinking = running(job(1, high=8), a=4)
    shrinking = replace(shrinking, draining=(Draining(pool="a", workers=2, deadline_s=10_060.0),))
    made = plan(cluster(shrinking, devices=16))
    assert (made.decisions[0].action, made.decisions[0].workers) == ("keep", {"a": 4})


def test_limits_below_the_present_size_do_not_block_the_plan():
    """kueue#12963."""
    world = Cluster(cluster(running(job(1, low=4, high=8), a=8)), dice(1))
    world.change("job-1", elastic_policy=replace(job(1, low=1, high=2).spec.elastic_policy))
    world.submit(job(2, low=6))
    for _ in range(3):
        world.tick()
    assert (world.of("job-1").workers, world.of("job-2").workers) == (2, 6)


def test_a_change_of_priority_counts_for_an_elastic_job_that_runs():
    world = Cluster(cluster(running(job(1, low=4, high=8), a=8), job(2, low=8)), dice(1))
    assert by_job(world.tick())["job-2"].action == "wait"
    world.change("job-2", priority_class="high")
    for _ in range(3):
        world.tick()
    assert world.of("job-2").workers == 8
    world.change("job-1", priority_class="high")
    world.change("job-2", priority_class="low")
    for _ in range(30):
        world.tick()
    assert world.of("job-1").workers == 8


def test_no_job_is_resized_below_its_minimum():
    running_job = running(job(1, low=4, high=8), a=8)
    made = plan(cluster(running_job, job(2, low=3), job(3, low=3)))
    assert sizes(made)["job-1"] == 5
    assert sum(decision.entitled > 0 for decision in made.decisions) == 2


def test_no_more_workers_are_evicted_than_needed():
    """volcano#1256, kueue#975: one device is needed, one device is given up, and no job is stopped."""
    made = plan(cluster(running(job(1, high=8), a=8), job(2, priority="high")))
    decision = by_job(made)["job-1"]
    assert (decision.action, decision.drain) == ("shrink", {"a": 1})
    assert decision.why == (GivesWay(job="job-2", pool="a", devices=1, because="minimum"),)


def test_no_more_jobs_are_stopped_than_needed():
    victims = [running(job(number, low=2, priority="low"), a=2) for number in (1, 2, 3, 4)]
    made = plan(cluster(*victims, job(5, low=4)))
    assert sum(decision.action == "preempt" for decision in made.decisions) == 2


def test_two_jobs_do_not_preempt_each_other_for_ever():
    """kueue#3779, volcano#3869."""
    teams = (Team(name="t0", quotas=(quota("a", 4),)), Team(name="t1", quotas=(quota("a", 4),)))
    world = Cluster(cluster(teams=teams), dice(1))
    for number in range(6):
        world.submit(job(number, f"t{number % 2}", low=3, high=6, priority=("high", "low")[number % 2]))
        world.tick()
    for _ in range(40):
        world.tick()
    before = dict(world.changes)
    for _ in range(40):
        world.tick()
    assert world.changes == before


def test_a_worker_that_does_not_leave_blocks_only_its_own_devices():
    """kueue#6489: others start meanwhile."""
    stuck = replace(job(1, low=2), draining=(Draining(pool="a", workers=2, deadline_s=1.0),))
    assert by_job(plan(cluster(stuck, job(2, low=6))))["job-2"].action == "start"


def test_a_job_that_was_just_started_is_not_stopped_by_a_higher_priority():
    """kueue PR 12791, kai-scheduler#1832."""
    young = running(job(1, low=8), a=8, started_s=9_900.0)
    made = plan(cluster(young, job(2, low=8, priority="high")))
    assert by_job(made)["job-1"].action == "keep"
    old = running(job(1, low=8), a=8, started_s=9_000.0)
    assert by_job(plan(cluster(old, job(2, low=8, priority="high"))))["job-1"].action == "preempt"


def test_the_job_that_loses_least_is_stopped_first():
    """kueue#477."""
    saved = replace(running(job(1, low=4, priority="low"), a=4), unsaved_s=1.0)
    unsaved = replace(running(job(2, low=4, priority="low"), a=4), unsaved_s=3600.0)
    teams = (Team(name="t", quotas=(quota("a", 8),)),)
    made = plan(cluster(saved, unsaved, job(3, low=9, priority="high"), teams=teams, devices=13))
    assert by_job(made)["job-2"].action == "keep"
    assert by_job(made)["job-1"].action == "preempt"


def test_a_notice_drains_a_node_once():
    """The workers under notice are asked to leave in one plan; the next plan ignores them."""
    doomed = running(job(1, low=2, high=4), a=4)
    doomed = replace(doomed, holds=(replace(doomed.holds[0], leaving=2),))
    world = Cluster(cluster(doomed, devices=4, leaving=2), dice(1))
    assert by_job(world.tick())["job-1"].drain == {"a": 2}
    world.snapshot = replace(world.snapshot, pools=(replace(world.snapshot.pools[0], devices=2, leaving=0),))
    for _ in range(5):
        assert by_job(world.tick())["job-1"].action == "keep"


def test_a_failed_device_costs_one_worker_and_not_its_whole_pool():
    """Horovod bans a host for ever."""
    world = Cluster(cluster(running(job(1, high=8), a=8)), dice(1))
    world.snapshot = replace(world.snapshot, pools=(replace(world.snapshot.pools[0], devices=7),))
    assert sizes(world.tick()) == {"job-1": 7}
    world.snapshot = replace(world.snapshot, pools=(replace(world.snapshot.pools[0], devices=8),))
    world.tick(100.0)
    assert sizes(world.tick()) == {"job-1": 8}


def test_failed_capacity_that_comes_back_in_time_costs_nothing():
    for policy in ({"low": 8}, {"low": 2, "high": 8}, {"sizes": (2, 8)}):
        broken = failed(running(job(1, **policy), a=8), 4, since_s=9_990.0)
        (made,) = plan(cluster(broken, devices=4)).decisions
        assert (made.action, made.why[0]) == ("keep", AwaitsRepair(until_s=10_020.0))
    late = failed(running(job(1, low=8), a=8), 4)
    assert plan(cluster(late, devices=4)).decisions[0].action == "preempt"


def test_a_borrower_gets_no_repaired_devices_while_the_owner_waits():
    """A job that must give up live workers is not spared because others of its workers are dead."""
    teams = (Team(name="t"), Team(name="owner", quotas=(quota("a", 4),)))
    for dead, there in ((0, 8), (4, 8), (4, 4)):
        borrower = failed(running(job(1, high=8), a=8), dead, since_s=9_990.0)
        made = by_job(plan(cluster(borrower, job(2, "owner", low=4), devices=there, teams=teams)))
        assert sum(made["job-1"].workers.values()) == there - 4
        assert made["job-2"].entitled == 4


def test_devices_gone_with_failed_workers_are_missing_for_no_other_job():
    """Of twelve there are eight left, and eight workers live."""
    for policy in ({"low": 8}, {"low": 1, "high": 8}):
        broken = failed(running(job(1, **policy), a=8), 4, since_s=9_990.0)
        other = running(job(2, low=1, high=4), a=4)
        made = by_job(plan(cluster(broken, other, devices=8)))
        assert [one.action for one in made.values()] == ["keep", "keep"]
        made = by_job(plan(cluster(broken, other, job(3), devices=9)))
        assert made["job-3"].action == "wait", "repaired devices belong to the job that lost them"


def test_a_reservation_does_not_wait_for_a_repair():
    start = datetime.fromtimestamp(10_000, UTC)
    hour = Reservation(name="r", pool="a", devices=4, when=Once(start=start, end=start + timedelta(hours=1)))
    for dead, there, left in ((4, 8, 4), (4, 4, 0), (4, 6, 2), (2, 10, 6)):
        broken = failed(running(job(1, high=8), a=8), dead, since_s=9_990.0)
        snapshot = replace(cluster(broken, devices=there), reservations=(hour,))
        assert sum(plan(snapshot).decisions[0].workers.values()) == left


def failed(state, workers, since_s=9_000.0):
    """Return the job after this many of its workers failed, by default long ago."""
    holds = (replace(state.holds[0], failed=workers), *state.holds[1:])
    return replace(state, holds=holds, faulty_since_s=since_s)


def test_dead_workers_that_are_not_replaced_are_written_off():
    policy = {"low": 2, "high": 8}
    for dead, left in ((1, 7), (3, 5), (6, 2), (7, 2), (8, 2)):
        (made,) = plan(cluster(failed(running(job(1, **policy), a=8), dead))).decisions
        assert (made.action, made.workers) == ("shrink", {"a": left})
        assert made.why == (DidNotReturn(workers=dead),)


def test_a_job_at_its_minimum_stays_and_names_its_dead_workers():
    for high in (4, 8):
        (made,) = plan(cluster(failed(running(job(1, low=4, high=high), a=4), 1))).decisions
        assert (made.action, made.why) == ("keep", (DidNotReturn(workers=1),))


def test_a_waiting_job_has_a_reason():
    teams = (Team(name="t", quotas=(quota("a", 2, borrow=1),)),)
    made = plan(cluster(running(job(1, "t", low=2), a=2), job(2, "t", low=2), teams=teams))
    why = NoRoom(pool="a", need=2, room=1, node="t")
    assert by_job(made)["job-2"].why == (why,)
