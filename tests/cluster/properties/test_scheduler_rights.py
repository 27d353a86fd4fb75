"""The rights of jobs over each other, in clusters small enough to be checked by hand."""

from elastane.cluster.nouns.cluster import Snapshot
from elastane.cluster.nouns.config import Cohort, Team
from elastane.cluster.nouns.plans import GivesWay, QuotaReached
from elastane.cluster.nouns.pools import Pool
from elastane.cluster.scheduler.plan import plan

from .scheduler_model import Cluster, by_job, dice, job, quota, replace, running
from .scheduler_strategies import PRIORITIES

NOW_S = 10_000.0
OWNER = (Team(name="t", quotas=(quota("a", 4),)), Team(name="u"))


def pool(name, devices, **fields):
    return Pool(name=name, device=fields.pop("device", "h100"), devices=devices, **fields)


EIGHT = (pool("a", 8),)


def cluster(*jobs, pools=EIGHT, teams=()):
    return Snapshot(now_s=NOW_S, pools=pools, teams=teams, priorities=PRIORITIES, jobs=jobs)


def failed(state, workers, since_s=NOW_S - 10):
    holds = (replace(state.holds[0], failed=workers), *state.holds[1:])
    return replace(state, holds=holds, faulty_since_s=since_s)


def actions(made):
    return [decision.action for decision in made.decisions]


def test_an_owner_is_served_although_a_teammate_waits_for_more_than_their_quota():
    """Other teams do not borrow places that are held for a job that also needs their quota.

    Without the borrower, the teammate comes first if it has run out of patience: the borrower has not yet.
    """
    for gap, served, workers in ((4, "job-3", 4), (40, "job-2", 5)):
        world = Cluster(cluster(teams=OWNER), dice(1))
        world.submit(job(1, "u", low=8))
        world.tick()
        world.submit(job(2, "t", low=5))
        for _ in range(gap):
            world.tick()
        world.submit(job(3, "t", low=4))
        sizes = []
        for _ in range(40):
            world.tick()
            sizes.append(world.of(served).workers)
        assert sizes[2:] == [workers] * 38
        assert world.changes == {"job-1": 2, "job-2": 0, "job-3": 0} | {served: 1}


def test_teammates_wait_for_a_job_that_needs_more_than_their_quota():
    """No other team asks, so devices that its teammates leave are held for it until it fits."""
    world = Cluster(cluster(teams=OWNER), dice(1))
    world.submit(job(1, "t", low=5))
    for number in range(2, 6):
        world.submit(job(number, "t", low=2))
        world.work[f"job-{number}"] = 2 * 300.0 * number
    world.snapshot = replace(world.snapshot, jobs=world.snapshot.jobs[1:])
    world.tick()
    world.submit(job(1, "t", low=5))
    for number in range(10, 60):
        world.submit(job(number, "t", low=2))
        world.work[f"job-{number}"] = 2 * 300.0
        for _ in range(4):
            world.tick()
        if world.of("job-1").workers:
            break
    assert world.of("job-1").workers == 5


def test_a_job_waits_and_holds_only_where_it_can_ever_fit():
    large, kinds = job(1, low=4), ("h100",)
    small = [running(job(number, low=2, kinds=kinds), a=2) for number in (2, 3)]
    pools = (pool("a", 4), pool("b", 3, device="a100"))
    world = Cluster(cluster(large, *small, pools=pools), dice(1))
    world.work = {"job-2": 600.0, "job-3": 900.0}
    other = by_job(plan(replace(world.snapshot, jobs=(*world.snapshot.jobs, job(9, kinds=("a100",))))))
    assert other["job-9"].action == "start"
    for number in range(10, 50):
        world.submit(job(number, low=2, kinds=kinds))
        world.work[f"job-{number}"] = 600.0
        for _ in range(5):
            world.tick()
    assert world.of("job-1").holds[0].pool == "a"


def test_no_place_is_held_for_a_job_with_its_minimum():
    teams = (Team(name="t", quotas=(quota("a", 1), quota("b", 1))), Team(name="u"))
    spread = running(job(1, "t", low=4), a=4)
    beside = cluster(spread, job(2, "t", borrow=False), pools=(pool("a", 4), pool("b", 2)), teams=teams)
    assert actions(plan(beside)) == ["keep", "start"]


def test_a_job_that_has_lost_a_device_takes_none_from_a_sound_job_of_its_priority():
    older, sound = running(job(1, low=4), started_s=-2e6, a=4), running(job(2, low=4), a=4)
    for dead, there in ((1, 7), (4, 4)):
        broken = failed(older, dead, since_s=NOW_S - 100)
        assert actions(plan(cluster(broken, sound, pools=(pool("a", there),)))) == ["preempt", "keep"]
    doomed = replace(older, holds=(replace(older.holds[0], leaving=1),))
    assert actions(plan(cluster(doomed, sound, pools=(pool("a", 8, leaving=1),)))) == ["preempt", "keep"]


def test_growth_that_gave_way_to_a_start_stops_no_borrower_elsewhere():
    """It grows again in another pool as soon as devices there are idle."""
    spot = pool("b", 4, spot=True)
    teams = (Team(name="t", quotas=(quota("a", 4), quota("b", 4))), Team(name="u"))
    grown, borrower = (
        running(job(1, "t", high=4, spot=True), a=4),
        running(job(2, "u", low=4, spot=True), b=4),
    )
    world = Cluster(cluster(grown, borrower, pools=(pool("a", 4), spot), teams=teams), dice(1))
    world.tick()
    world.submit(job(3, "t", low=2))
    for _ in range(20):
        world.tick()
        assert world.of("job-2").workers == 4
    assert [world.of(name).workers for name in ("job-1", "job-3")] == [2, 2]
    world.snapshot = replace(
        world.snapshot, jobs=tuple(one for one in world.snapshot.jobs if one.name != "job-2")
    )
    for _ in range(5):
        world.tick()
    assert {one.pool: one.workers for one in world.of("job-1").holds} == {"a": 2, "b": 2}


def test_an_owner_that_needs_more_for_its_minimum_takes_it_back_from_borrowers():
    owner = running(job(1, "t", low=4), a=2)
    for borrower, action in ((job(2, "u", high=6), "shrink"), (job(2, "u", low=6), "preempt")):
        made = plan(cluster(owner, running(borrower, started_s=-2e6, a=6), teams=OWNER))
        assert actions(made) == ["keep", action]
        assert made.decisions[1].why[0] == GivesWay(job="job-1", pool="a", devices=2, because="owner")


def test_a_job_keeps_its_repair_time_when_it_asks_for_fewer_workers():
    for high, action in ((8, "keep"), (7, "shrink")):
        broken = failed(running(job(1, low=4, high=high), a=8), 5)
        (made,) = plan(cluster(broken, pools=(pool("a", 3),))).decisions
        assert (made.action, made.workers) == (action, {"a": high})


def test_losses_of_other_jobs_do_not_cost_a_job_its_repair_time():
    several = [failed(running(job(number, high=4), a=4), 1) for number in (1, 2, 3, 4)]
    elsewhere = failed(running(job(9, low=4), b=4), 1)
    urgent = job(10, priority="high", kinds=("h100",))
    pools = (pool("a", 12), pool("b", 3, device="a100"))
    assert by_job(plan(cluster(*several, elsewhere, urgent, pools=pools)))["job-9"].action == "keep"


def test_a_job_leaves_an_illegal_size_at_any_cost():
    changed = replace(running(job(1, low=4, high=10, step=3), a=6), resize_s=1e6)
    (made,) = plan(cluster(changed, pools=(pool("a", 7),))).decisions
    assert (made.action, made.workers) == ("grow", {"a": 7})


def test_a_notice_shortens_only_the_drain_of_jobs_that_leave_for_it():
    calm = running(job(1, high=4, drain_s=600.0), a=4)
    doomed = running(job(2, high=4, drain_s=600.0), a=4)
    doomed = replace(doomed, holds=(replace(doomed.holds[0], leaving=1),))
    noticed = pool("a", 8, leaving=1, gone_at_s=NOW_S + 5)
    made = by_job(plan(cluster(calm, doomed, job(3, low=3, priority="high"), pools=(noticed,))))
    assert (made["job-1"].drain_s, made["job-2"].drain_s) == (600.0, 5.0)
    past = pool("a", 8, gone_at_s=NOW_S - 500)
    (made, _) = plan(cluster(calm, job(3, low=6), pools=(past,))).decisions
    assert made.drain_s == 600.0


def test_a_loss_of_all_borrowers_is_explained_by_their_common_limit():
    teams = (Team(name="t"), Team(name="u", quotas=(quota("a", 6, lend=2),)))
    (made,) = plan(cluster(running(job(1, "t", high=6), a=5), teams=teams)).decisions
    assert (made.action, made.workers) == ("shrink", {"a": 4})
    assert made.why == (QuotaReached(node="", pool="a", limit=4),)


def test_a_worker_that_goes_to_another_job_is_not_explained_by_its_worth():
    """A new worker would not be granted, but a present one stays while no other job asks for it."""
    speeds = tuple((n, n / (0.7 + 0.3 * n)) for n in (1, 2, 4, 8, 12))
    grown = replace(running(job(1, high=20), a=9), speeds=speeds)
    nine = (pool("a", 9),)
    assert actions(plan(cluster(grown, pools=nine))) == ["keep"]
    made = by_job(plan(cluster(grown, job(2, priority="high"), pools=nine)))
    assert made["job-1"].why == (GivesWay(job="job-2", pool="a", devices=1, because="minimum"),)


def test_the_parts_of_refused_jobs_go_to_the_first_job_that_fits():
    """Each of the two parts is too small; both together are enough for the oldest waiting job."""
    made = plan(
        cluster(
            running(job(1, low=9), a=9),
            running(job(2, low=9), b=9),
            job(3, low=8, submitted_s=NOW_S),
            job(4, low=4, submitted_s=NOW_S),
            pools=(pool("a", 4), pool("b", 4)),
            teams=(Team(name="t", quotas=(quota("a", 4), quota("b", 4))),),
        )
    )
    assert [one.entitled for one in made.decisions] == [0, 0, 8, 0]


def lender(devices, borrowed):
    """Team t lends two of its devices to job 1 of its cohort, which borrows the others; job 4 waits.

    Job 4 takes job 3's growth back, and then job 1 has the rest of what the team owns.
    """
    return Cluster(
        replace(
            cluster(
                running(job(1, "u", low=2 + borrowed), a=2 + borrowed),
                running(job(2, low=6), a=6),
                running(job(3, high=2), a=2),
                job(4, low=7, sizes=(7, 8), submitted_s=NOW_S),
                pools=(pool("a", devices), pool("b", 4)),
                teams=(
                    Team(name="t", cohort="c", quotas=(quota("a", 12, lend=2),)),
                    Team(name="u", cohort="c"),
                    Team(name="v", quotas=(quota("a", devices - 12 - borrowed, lend=0),)),
                ),
            ),
            cohorts=(Cohort(name="c", quotas=(quota("a", 0, borrow=borrowed),)),),
        ),
        dice(1),
    )


def test_two_jobs_do_not_stop_each_other_in_turns():
    """Later, job 3 takes the lent devices back; job 1 neither gets job 4's place nor starts after it."""
    crowded = lender(devices=12, borrowed=0)
    for _ in range(4):
        crowded.tick(400.0)
    made = crowded.tick(400.0)
    assert [(one.action, one.entitled) for one in made.decisions] == [
        ("wait", 0),
        ("keep", 6),
        ("keep", 2),
        ("keep", 8),
    ]


def test_no_job_waits_for_lent_devices_that_do_not_return():
    """They are lent while job 1 runs, so the team must not be promised more than the rest."""
    roomy = lender(devices=22, borrowed=2)
    roomy.tick(400.0)
    assert actions(roomy.tick(400.0))[3] == "start"


def test_a_reason_names_all_devices_that_another_job_gets():
    """Each device of growth is a separate grant; the reason adds them up."""
    made = plan(cluster(running(job(1, low=2, high=8), a=8), job(2, low=2, high=4)))
    assert made.decisions[0].why == (
        GivesWay(job="job-2", pool="a", devices=2, because="minimum"),
        GivesWay(job="job-2", pool="a", devices=2, because="goodput"),
    )
