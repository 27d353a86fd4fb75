"""The figures of the pilot of three owners, its page, and its scenario."""

from pathlib import Path

import pytest
from pilot.owners import (
    OwnerRate,
    Pause,
    compute_owner_figures,
    find_pauses,
    list_changes,
    list_price_effects,
)
from pilot.owners_page import build_owner_rows, build_price_rows
from pilot.record import ArmRecord, Observation
from pilot.scenario import Price, ScenarioEvent, read_scenario

from elastane.cluster.controller.admission import check_spec
from elastane.cluster.controller.cluster.declarations import check_config
from elastane.cluster.nouns.usage import UsageRow
from elastane.common.errors import BadInput
from elastane.run.nouns.records import EventLine, LedgerLine, Samples

ROOT = Path(__file__).parents[3]
OWNERS = ROOT / "benchmarks" / "pilot" / "three_owners.yaml"
RANK_SITES = ("eu", "eu", "us")


def make_round(step, *absent):
    ranks = [rank for rank, site in enumerate(RANK_SITES) if site not in absent]
    samples = Samples(0, 0, 0, 0, "", dict.fromkeys(ranks, (10 * step, 10 * step + 10)))
    return LedgerLine(
        step=step,
        generation=1,
        workers={},
        samples=samples,
        loss=1.0,
        loss_hex="",
        time=float(step),
        seconds={},
        absent=absent,
    )


def make_arm(observations, played):
    return ArmRecord(
        name="owners",
        home=Path("home"),
        began_s=100.0,
        ended_s=90.0,
        jobs=(),
        events=(),
        observations=tuple(observations),
        actions=(),
        played=tuple(played),
        usage=(),
        audit=(),
    )


def observe(at_s, **granted):
    return Observation(at_s=at_s, job="study", state="running", granted=granted, uses=granted, step=0)


def test_a_controller_accepts_the_scenario():
    scenario = read_scenario(OWNERS)
    check_config(scenario.cluster)
    spec = scenario.make_spec(scenario.jobs[0], ROOT, {})
    check_spec(spec)
    assert Path(spec.script).is_file()
    assert {*spec.data.sites} == {pool.site for pool in scenario.cluster.pools}
    # Figures of an owner are those of its pool and of its site, under one name.
    assert all(pool.name == pool.site for pool in scenario.cluster.pools)


def test_pauses_are_the_rounds_without_a_site_and_last_until_the_next_one_with_it():
    ledger = [make_round(1, "us"), make_round(2), *(make_round(step, "us") for step in (3, 4)), make_round(5)]
    assert find_pauses("us", ledger) == (Pause(1, 1, 1.0), Pause(3, 4, 3.0))
    assert find_pauses("eu", ledger) == ()
    assert find_pauses("us", [make_round(1), make_round(2, "us")]) == (Pause(2, 2, 1.0),)


def test_an_owner_has_the_samples_bytes_and_costs_of_its_own_site():
    ledger = [make_round(1), make_round(2, "us"), make_round(3)]
    usage = [
        UsageRow(pool="eu", borrowed_device_s=30.0, cost=3.0),
        UsageRow(pool="us", borrowed_device_s=20.0, cost=4.0),
        UsageRow(pool="eu>us", egress_bytes=5e6, egress_cost=0.5, cost=0.5),
        UsageRow(pool="us>eu", egress_bytes=7e6, cost=0.0),
    ]
    eu, us = (compute_owner_figures(name, ledger, RANK_SITES, usage) for name in ("eu", "us"))
    assert (eu.rounds, eu.samples, us.rounds, us.samples) == (3, 60, 2, 20)
    assert (eu.sent_bytes, eu.received_bytes) == (us.received_bytes, us.sent_bytes) == (5_000_000, 7_000_000)
    assert (eu.device_cost, eu.egress_cost, eu.cost, us.cost) == (3.0, 0.5, 3.5, 4.0)
    _, *lines = build_owner_rows({"eu": eu, "us": us})
    assert [line[-1] for line in lines] == ["none", "2 to 2, 2.0 s"]


def test_joins_leaves_and_deaths_name_the_site_of_the_worker():
    events = [
        EventLine(time=101.0, kind="worker.joined", workers=(4,), detail={"sites": "eu"}),
        EventLine(time=102.0, kind="coordinator.started"),
        EventLine(time=103.0, kind="worker.died", workers=(4,)),
        EventLine(time=103.5, kind="site.absent", who="site eu"),
    ]
    found = list_changes(events, began_s=100.0)
    assert [(one.at_s, one.kind, one.text.split(":")[0]) for one in found] == [
        (1.0, "joined", "eu"),
        (3.0, "died", "eu"),
        (3.5, "absent", "eu"),
    ]


def test_the_effect_of_a_price_ends_with_the_next_event():
    scenario = read_scenario(OWNERS)
    change = ScenarioEvent(at=10.0, price=Price(pool="berlin", price=20.0))
    later = ScenarioEvent(at=30.0, price=Price(pool="boston", price=5.0))
    observations = [
        observe(5.0, berlin=2, boston=1, kyoto=1),
        observe(20.0, berlin=1, boston=2, kyoto=1),
        observe(40.0, berlin=1, boston=1, kyoto=1),
    ]
    first, second = list_price_effects(make_arm(observations, [change, later]), scenario)
    assert first.before["berlin"] == OwnerRate(2, 2.0, 4.0)
    assert first.at_once["berlin"] == OwnerRate(2, 20.0, 40.0)
    assert first.after["berlin"] == OwnerRate(1, 20.0, 20.0)
    assert first.after["boston"] == OwnerRate(2, 2.5, 5.0)
    assert second.before == first.after
    assert second.after["boston"] == OwnerRate(1, 5.0, 5.0)
    assert build_price_rows(first)[-1] == ("together", "", "", "4", "4", "9.50", "45.50", "28.00")


def test_an_event_that_waits_for_an_unknown_job_is_refused(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text(
        "{name: s, microbatchS: 1, virtualRanks: 1, timeoutS: 1, cluster: {}, jobs: [], "
        "events: [{at: 3, after: {job: other, step: 2}, price: {pool: p, price: 1}}]}"
    )
    with pytest.raises(BadInput, match="at 3: no job 'other'"):
        read_scenario(file)
