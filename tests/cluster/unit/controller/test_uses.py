"""The terms and prices of the devices that jobs use, and the occupancy of the pools."""

from elastane.cluster.controller.cluster.uses import charge_jobs, measure_occupancy
from elastane.cluster.nouns.cluster import Draining, Holding, JobState, Snapshot
from elastane.cluster.nouns.config import Cohort, Quota, Team
from elastane.cluster.nouns.jobs import JobSpec, WorkerResources
from elastane.cluster.nouns.pools import Pool
from elastane.cluster.nouns.usage import Use

POOLS = (
    Pool(name="owned", device="h100", devices=8, price=2.0),
    Pool(name="spot", device="h100", devices=8, spot=True, price=0.5),
)
TEAMS = (Team(name="t", quotas=(Quota(pool="owned", nominal_quota=4),)),)


def state(number: int, team: str = "t", devices: int = 1, **pools: int) -> JobState:
    spec = JobSpec(
        name=f"job-{number}", script="x.py", team=team, resources_per_worker=WorkerResources(devices=devices)
    )
    holds = tuple(Holding(pool=pool, workers=workers) for pool, workers in pools.items())
    return JobState(number=number, spec=spec, submitted_s=0.0, holds=holds)


def snapshot(*jobs: JobState, teams: tuple[Team, ...] = TEAMS, cohorts: tuple[Cohort, ...] = ()) -> Snapshot:
    return Snapshot(now_s=0.0, pools=POOLS, teams=teams, cohorts=cohorts, jobs=jobs)


def quotas(devices: int) -> tuple[Quota, ...]:
    return (Quota(pool="owned", nominal_quota=devices),)


def terms(taken: Snapshot) -> dict[str, dict[str, int]]:
    return {job: {use.terms: use.devices for use in uses} for job, uses in charge_jobs(taken).items()}


def test_the_oldest_jobs_of_a_team_use_its_own_quota() -> None:
    found = charge_jobs(snapshot(state(2, owned=3), state(1, owned=3)))
    assert found["job-1"] == (Use(pool="owned", terms="owned", devices=3, price=2.0),)
    assert found["job-2"] == (
        Use(pool="owned", terms="owned", devices=1, price=2.0),
        Use(pool="owned", terms="borrowed", devices=2, price=2.0),
    )


def test_a_team_without_a_quota_borrows() -> None:
    assert charge_jobs(snapshot(state(1, team="guest", owned=1)))["job-1"][0].terms == "borrowed"


def test_the_quota_of_a_cohort_counts_as_owned_by_its_teams() -> None:
    within = snapshot(
        state(1, owned=4), teams=(Team(name="t", cohort="c"),), cohorts=(Cohort(name="c", quotas=quotas(8)),)
    )
    assert terms(within) == {"job-1": {"owned": 4}}


def test_the_oldest_jobs_of_a_cohort_use_its_quota_after_that_of_their_teams() -> None:
    teams = (Team(name="t", cohort="c", quotas=quotas(1)), Team(name="u", cohort="c", quotas=quotas(1)))
    cohorts = (Cohort(name="c", parent="d", quotas=quotas(2)), Cohort(name="d", quotas=quotas(1)))
    jobs = (state(1, owned=2), state(2, team="u", owned=3), state(3, owned=2))
    assert terms(snapshot(*jobs, teams=teams, cohorts=cohorts)) == {
        "job-1": {"owned": 2},
        "job-2": {"owned": 3},
        "job-3": {"borrowed": 2},
    }


def test_idle_quota_of_a_sibling_is_borrowed() -> None:
    teams = (Team(name="t", cohort="c"), Team(name="u", cohort="c", quotas=quotas(4)))
    cohorts = (Cohort(name="c", quotas=quotas(1)),)
    assert terms(snapshot(state(1, owned=3), teams=teams, cohorts=cohorts)) == {
        "job-1": {"owned": 1, "borrowed": 2}
    }


def test_spot_devices_are_always_on_spot_terms() -> None:
    assert charge_jobs(snapshot(state(1, spot=2)))["job-1"] == (
        Use(pool="spot", terms="spot", devices=2, price=0.5),
    )


def test_leaving_workers_are_paid_for_until_they_are_gone() -> None:
    leaving = JobState(
        number=1,
        spec=state(1, devices=2).spec,
        submitted_s=0.0,
        holds=(Holding(pool="owned", workers=1),),
        draining=(Draining(pool="owned", workers=1, deadline_s=9.0),),
    )
    assert [use.devices for use in charge_jobs(snapshot(leaving))["job-1"]] == [4]


def test_a_job_that_waits_uses_nothing() -> None:
    assert charge_jobs(snapshot(state(1))) == {}


def test_uses_of_all_jobs_on_all_terms_add_up_by_pool() -> None:
    pools = (Pool(name="a", device="h100", devices=8, leaving=3), Pool(name="b", device="cpu", devices=2))
    uses = (
        (Use(pool="a", terms="owned", devices=2), Use(pool="a", terms="borrowed", devices=1)),
        (Use(pool="a", terms="spot", devices=1), Use(pool="b", terms="owned", devices=2)),
    )
    first, second = measure_occupancy(pools, (), uses, {})
    assert (first.pool, first.used, first.free) == ("a", 4, 1)
    assert (second.pool, second.used, second.free) == ("b", 2, 0)


def test_leaving_devices_are_not_free_and_a_removed_pool_is_left_out() -> None:
    pools = (Pool(name="a", device="h100", devices=8, leaving=3),)
    (pool,) = measure_occupancy(
        pools,
        (),
        ((Use(pool="a", terms="owned", devices=1),), (Use(pool="b", terms="owned", devices=9),)),
        {},
    )
    assert (pool.used, pool.free) == (1, 4)


def test_a_limited_pool_in_full_use_has_no_free_device() -> None:
    (pool,) = measure_occupancy(
        (Pool(name="a", device="h100", devices=6, leaving=4),),
        (),
        ((Use(pool="a", terms="owned", devices=2),),),
        {},
    )
    assert pool.free == 0


def test_reserved_devices_are_not_free() -> None:
    pools = (Pool(name="a", device="h100", devices=8), Pool(name="b", device="h100", devices=8, leaving=6))
    uses = ((Use(pool="a", terms="owned", devices=1),),)
    first, second = measure_occupancy(pools, (), uses, {"a": 4, "b": 4})
    assert (first.reserved, first.free) == (4, 3)
    assert (second.reserved, second.free) == (2, 0)
