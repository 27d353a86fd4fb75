"""A job with data at several sites: the real store, API, loop and scheduler give it agents at each."""

import msgspec
import pytest

from elastane.cluster.controller.cluster.declarations import diff_configs
from elastane.cluster.controller.jobs.egress_account import INTERVAL_S
from elastane.cluster.controller.store import documents
from elastane.cluster.nouns.config import DeclaredEngine, EgressPrices
from elastane.cluster.nouns.jobs import DataPlacement
from elastane.cluster.nouns.pools import Pool

from .test_jobs_on_agents import make_yard
from .test_metrics import scrape

__all__ = ["make_yard"]
BOTH = DataPlacement(sites=("berlin", "boston"))


@pytest.fixture
def cluster(make_yard):
    made = make_yard()
    with made.api.store.begin_write() as tx:
        before = documents.read_declared_config(tx)
        own = {"home": "own"}
        config = msgspec.structs.replace(
            before,
            engines=tuple(DeclaredEngine(name=name, kind="slurm", options=own) for name in ("hpc", "west")),
            pools=(
                Pool(name="b", device="a100", devices=3, engine="hpc", site="berlin"),
                Pool(name="u", device="a100", devices=1, engine="west", site="boston", price=9.0),
            ),
        )
        documents.write_documents(tx, diff_configs(before, config), made.clock())
    return made


def list_sites(cluster):
    """Return the pool and the sites of each agent that takes part."""
    pools = {f"{agent.number}": agent.pool for agent in cluster.living()}
    members = cluster.yard.runs["train"].members
    return sorted((pools[id_.rpartition("-")[2]], agent.told.sites) for id_, agent in members.items())


def test_agents_of_both_engines_take_part_and_know_their_site(cluster, make_spec):
    cluster.submit(make_spec, low=2, high=3, data=BOTH)
    cluster.until(lambda: cluster.members() == 3)
    assert list_sites(cluster) == [("b", ("berlin",)), ("b", ("berlin",)), ("u", ("boston",))]


def test_a_lost_agent_of_a_site_is_replaced_there(cluster, make_spec):
    cluster.submit(make_spec, low=2, high=2, data=BOTH)
    cluster.until(lambda: cluster.members() == 2)
    (overseas,) = (agent for agent in cluster.living() if agent.pool == "u")
    cluster.pass_time(90)
    cluster.yard.lose(next(id_ for id_ in cluster.yard.agents if id_.endswith(f"-{overseas.number}")))
    cluster.until(lambda: cluster.members() == 2)
    assert list_sites(cluster) == [("b", ("berlin",)), ("u", ("boston",))]


def test_a_job_without_sites_is_told_none(cluster, make_spec):
    cluster.submit(make_spec, low=2, high=2)
    cluster.until(lambda: cluster.members() == 2)
    assert list_sites(cluster) == [("b", ()), ("b", ())]


@pytest.fixture
def priced(cluster):
    """A cluster in which 10^9 bytes from Berlin to Boston cost 2, and the other way nothing."""
    with cluster.api.store.begin_write() as tx:
        before = documents.read_declared_config(tx)
        prices = (EgressPrices(name="berlin", prices={"boston": 2.0}),)
        config = msgspec.structs.replace(before, egress=prices)
        documents.write_documents(tx, diff_configs(before, config), cluster.clock())
    return cluster


def send(cluster, **gigabytes):
    """Let the only worker of each site have sent this much to the other one so far."""
    run = cluster.yard.runs["train"]
    for number, agent in enumerate(run.members.values()):
        (site,) = agent.told.sites
        other = {"berlin": "boston", "boston": "berlin"}[site]
        run.crossings[number] = {other: int(gigabytes[site] * 1e9)}


def read_usage(cluster, by):
    rows = cluster.api.user("operator").get(f"/usage?by={by}").json()["rows"]
    return {row[by]: (row["egressBytes"], row["egressCost"], row["cost"]) for row in rows}


def test_bytes_between_sites_are_paid_and_shown_beside_the_devices(priced, make_spec):
    priced.submit(make_spec, low=2, high=2, data=BOTH)
    priced.until(lambda: priced.members() == 2)
    send(priced, berlin=3.0, boston=1.0)
    priced.pass_time(10)
    job = priced.job("train")
    assert job.egress.spent == 6.0
    assert job.spent >= 6.0
    by_pool = read_usage(priced, "pool")
    assert by_pool["berlin>boston"] == (3e9, 6.0, 6.0)
    assert by_pool["boston>berlin"] == (1e9, 0.0, 0.0)
    ((sent, egress, cost),) = read_usage(priced, "job").values()
    assert (sent, egress) == (4e9, 6.0)
    assert cost == pytest.approx(6.0 + by_pool["u"][2])
    priced.pass_time(30)
    assert read_usage(priced, "pool")["berlin>boston"] == (3e9, 6.0, 6.0)


def test_bytes_are_paid_once_across_restarts_of_the_controller_and_the_end_of_the_job(priced, make_spec):
    priced.submit(make_spec, low=2, high=2, data=BOTH)
    priced.until(lambda: priced.members() == 2)
    send(priced, berlin=3.0, boston=0.0)
    priced.pass_time(10)
    priced.replace_controller()
    send(priced, berlin=4.0, boston=0.0)
    priced.pass_time(10)
    priced.api.clock.now_s += INTERVAL_S
    send(priced, berlin=5.0, boston=0.0)
    priced.pass_time(10)
    assert priced.job("train").egress.spent == 10.0
    priced.api.user("operator").post("/jobs/train/cancel")
    priced.until(lambda: priced.job("train").state == "cancelled")
    assert read_usage(priced, "pool")["berlin>boston"][:2] == (pytest.approx(5e9), pytest.approx(10.0))
    assert priced.job("train").spent == pytest.approx(read_usage(priced, "job")["train"][2])


def test_a_budget_is_spent_by_bytes_too(priced, make_spec):
    priced.submit(make_spec, low=2, high=2, data=BOTH, budget=50.0)
    priced.until(lambda: priced.members() == 2)
    send(priced, berlin=30.0, boston=0.0)
    priced.until(lambda: priced.job("train").workers == 0)
    assert any("of its budget of 50" in sentence for sentence in priced.job("train").reason.sentences)


def test_absurd_counters_cost_their_own_job_only(priced, make_spec):
    priced.submit(make_spec, low=2, high=2, data=BOTH)
    priced.until(lambda: priced.members() == 2)
    send(priced, berlin=4e9, boston=-1.0)
    priced.pass_time(10)
    job = priced.job("train")
    assert (job.state, job.unreadable) == ("running", "")
    assert job.egress.spent == 2e6
    assert read_usage(priced, "pool")["berlin>boston"] == (1e15, 2e6, 2e6)


def test_scrapes_add_up_to_what_bytes_have_cost(priced, make_spec):
    scrape(priced.api)
    priced.submit(make_spec, low=2, high=2, data=BOTH)
    priced.until(lambda: priced.members() == 2)
    for gigabytes in (1.0, 1.0, 30.0, 31.0, 31.0):
        send(priced, berlin=gigabytes, boston=0.0)
        priced.pass_time(10)
        found = scrape(priced.api)
    assert found["elastane_egress_cost_total", "vision"] == pytest.approx(62.0)
    assert found["elastane_cost_total", "vision"] > 62.0
