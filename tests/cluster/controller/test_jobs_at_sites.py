"""A job with data at several sites: the real store, API, loop and scheduler give it agents at each."""

import msgspec
import pytest

from elastane.cluster.controller.cluster.declarations import diff_configs
from elastane.cluster.controller.store import documents
from elastane.cluster.nouns.config import DeclaredEngine
from elastane.cluster.nouns.jobs import DataPlacement
from elastane.cluster.nouns.pools import Pool

from .test_jobs_on_agents import make_yard

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
