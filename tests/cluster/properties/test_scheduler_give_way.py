"""If a job gives something up for another job, the other job gets it, and neither takes it back."""

from elastane.cluster.nouns.cluster import Snapshot
from elastane.cluster.nouns.config import Team
from elastane.cluster.nouns.pools import Pool

from .scheduler_model import Cluster, dice, job, quota, replace, running


def two_pools(*, a, s):
    return (Pool(name="a", device="h100", devices=a), Pool(name="s", device="h100", devices=s, spot=True))


def test_two_jobs_of_a_team_do_not_take_places_of_each_other():
    """The team owns the spot pool. The step from 3 to 6 workers lies on its quota and on borrowed devices.

    If nothing of the step stays on the team's quota, the second job grows there and the first one in the
    other pool, each where the other is.
    """
    jobs = (
        running(job(1, sizes=(3, 6), spot=True, state={"promised": 6}), a=1, s=5),
        running(job(2, sizes=(5, 7, 8), spot=True, state={"promised": 7}), a=2, s=5),
    )
    teams = (Team(name="t", quotas=(quota("s", 10, borrow=0),)),)
    snapshot = Snapshot(now_s=0.0, pools=two_pools(a=3, s=10), teams=teams, jobs=jobs)
    cluster = Cluster(snapshot, dice(1))
    for _ in range(10):
        assert [decision.action for decision in cluster.tick().decisions] == ["keep", "keep"]


def test_a_job_keeps_what_another_gave_up_for_it_although_a_part_of_the_step_is_borrowed():
    """The step from 1 to 3 workers is borrowed, and that to 4 on the spot pool, which the team owns."""
    long = {"promised": 6, "speeds": ((1, 1.0), (4, 4.0)), "remaining": 1e6}
    snapshot = Snapshot(
        now_s=0.0,
        pools=two_pools(a=2, s=7),
        teams=(Team(name="t", quotas=(quota("s", 7),)),),
        jobs=(
            running(job(1, sizes=(1, 6), spot=True, state=long), s=6),
            running(job(2, sizes=(1, 3, 4), spot=True, state={"promised": 3}), a=2, s=1),
        ),
    )
    cluster = Cluster(snapshot, dice(1))
    for _ in range(20):
        cluster.tick()
    assert cluster.changes == {"job-1": 1, "job-2": 1}


def test_a_job_gets_what_another_gave_up_for_it_although_it_seems_slower_then():
    """An owner would grow at one measurement in four, and at the others has not quite enough from it."""
    snapshot = Snapshot(
        now_s=0.0,
        pools=(Pool(name="a", device="h100", devices=7),),
        teams=(Team(name="owner", quotas=(quota("a", 4),)), Team(name="other")),
        jobs=(
            running(job(1, "owner", low=2, high=4, state={"promised": 3, "resize_s": 30.0}), a=3),
            running(job(2, "other", high=8, state={"promised": 4}), a=4),
        ),
    )
    cluster = Cluster(snapshot, dice(1))
    for measurement in range(40):
        speed = 150.0 if measurement % 4 else 160.0
        owner = replace(cluster.of("job-1"), speeds=((1, 100.0), (4, speed)))
        cluster.snapshot = replace(cluster.snapshot, jobs=(owner, cluster.of("job-2")))
        cluster.tick()
    assert (cluster.of("job-1").workers, cluster.changes) == (4, {"job-1": 1, "job-2": 1})
