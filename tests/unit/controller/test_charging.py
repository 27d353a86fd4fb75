"""On which terms devices are used."""

from elastane.api.cluster import Draining, Holding, JobState, Snapshot
from elastane.api.jobs import JobSpec, Resources
from elastane.api.pools import Pool
from elastane.api.quotas import Quota, Team
from elastane.api.wire import Use
from elastane.controller.charging import charged

POOLS = (
    Pool(name="owned", device="h100", devices=8, price=2.0),
    Pool(name="spot", device="h100", devices=8, spot=True, price=0.5),
)
TEAMS = (Team(name="t", quotas=(Quota(pool="owned", nominal_quota=4),)),)


def state(number: int, team: str = "t", devices: int = 1, **pools: int) -> JobState:
    spec = JobSpec(
        name=f"job-{number}", script="x.py", team=team, resources_per_worker=Resources(devices=devices)
    )
    holds = tuple(Holding(pool=pool, workers=workers) for pool, workers in pools.items())
    return JobState(number=number, spec=spec, submitted_s=0.0, holds=holds)


def snapshot(*jobs: JobState) -> Snapshot:
    return Snapshot(now_s=0.0, pools=POOLS, teams=TEAMS, jobs=jobs)


def test_the_oldest_jobs_of_a_team_use_its_own_quota() -> None:
    found = charged(snapshot(state(2, owned=3), state(1, owned=3)))
    assert found["job-1"] == (Use(pool="owned", terms="owned", devices=3, price=2.0),)
    assert found["job-2"] == (
        Use(pool="owned", terms="owned", devices=1, price=2.0),
        Use(pool="owned", terms="borrowed", devices=2, price=2.0),
    )


def test_a_team_without_a_quota_borrows() -> None:
    assert charged(snapshot(state(1, team="guest", owned=1)))["job-1"][0].terms == "borrowed"


def test_spot_is_spot_whoever_owns_it() -> None:
    assert charged(snapshot(state(1, spot=2)))["job-1"] == (
        Use(pool="spot", terms="spot", devices=2, price=0.5),
    )


def test_workers_on_their_way_out_are_paid_until_they_are_gone() -> None:
    leaving = JobState(
        number=1,
        spec=state(1, devices=2).spec,
        submitted_s=0.0,
        holds=(Holding(pool="owned", workers=1),),
        draining=(Draining(pool="owned", workers=1, deadline_s=9.0),),
    )
    assert [use.devices for use in charged(snapshot(leaving))["job-1"]] == [4]


def test_a_job_that_waits_uses_nothing() -> None:
    assert charged(snapshot(state(1))) == {}
