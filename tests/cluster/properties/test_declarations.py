"""Configurations: applying a difference has the described effect."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.cluster.controller.cluster.capacity import (
    limit_pools,
)
from elastane.cluster.controller.cluster.declarations import (
    KINDS,
    build_config,
    check_config,
    diff_configs,
    map_documents,
    merge_configs,
)
from elastane.cluster.nouns.config import Cohort, Config, DeclaredEngine, Quota, Team, Trigger
from elastane.cluster.nouns.pools import UNSEEN_S, Capacity, Metric, Node, Pool
from elastane.common.errors import BadField

names = st.sampled_from(["a", "b", "c", "d"])
teams = st.builds(Team, name=names, weight=st.sampled_from([1.0, 2.0]))
options = st.dictionaries(st.sampled_from(["setup", "conf"]), st.sampled_from(["/x", "/y"]))
engines = st.builds(DeclaredEngine, name=names, kind=st.just("slurm"), options=options)
pools = st.builds(
    Pool,
    name=names,
    device=st.just("h100"),
    devices=st.integers(0, 3),
    engine=names | st.just(""),
    options=st.dictionaries(st.just("time"), st.sampled_from(["60", "8:00:00"])),
)
configs = st.builds(
    Config,
    engines=st.none() | st.lists(engines, unique_by=lambda one: one.name).map(tuple),
    teams=st.none() | st.lists(teams, unique_by=lambda one: one.name).map(tuple),
    pools=st.none() | st.lists(pools, unique_by=lambda one: one.name).map(tuple),
)


def applied(standing, changes):
    documents = map_documents(standing)
    for one in changes:
        if one.after is None:
            del documents[one.kind, one.name]
        else:
            documents[one.kind, one.name] = msgspec.convert(one.after, KINDS[one.kind])
    return build_config((kind, document) for (kind, _), document in documents.items())


@given(configs, configs)
def test_applying_a_difference_turns_one_configuration_into_the_other(some, other):
    standing = build_config((kind, document) for (kind, _), document in map_documents(some).items())
    result = applied(standing, diff_configs(standing, other))
    assert map_documents(result) == map_documents(merge_configs(standing, other))
    assert diff_configs(result, other) == ()


@given(configs)
def test_a_configuration_does_not_differ_from_itself(config):
    standing = build_config((kind, document) for (kind, _), document in map_documents(config).items())
    assert diff_configs(standing, standing) == ()
    assert diff_configs(standing, Config()) == ()


@given(st.dictionaries(names, names | st.just("")))
def test_cohorts_are_accepted_exactly_if_they_are_a_tree(parents):
    def rooted(name):
        seen = set()
        while name:
            if name in seen or name not in parents:
                return False
            seen.add(name)
            name = parents[name]
        return True

    config = Config(cohorts=tuple(Cohort(name=name, parent=parent) for name, parent in parents.items()))
    if all(rooted(name) for name in parents):
        check_config(config)
    else:
        with pytest.raises(BadField):
            check_config(config)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (Config(teams=(Team(name="t", cohort="gone"),)), "teams.t.cohort"),
        (Config(teams=(Team(name="t", quotas=(Quota(pool="gone"),)),)), "teams.t.quotas.gone.pool"),
        (Config(engines=(DeclaredEngine(name="-e", kind="slurm"),)), "engines"),
        (
            Config(engines=(DeclaredEngine(name="e", kind="slurm", options={"x": "y"}),)),
            "engines.e.options.x",
        ),
        (Config(pools=(Pool(name="p", device="x", devices=1, engine="gone"),)), "pools.p.engine"),
        (Config(pools=(Pool(name="p", device="x", devices=1, options={"qos": "a"}),)), "pools.p.options"),
        (Config(teams=(Team(name="t"),), cohorts=(Cohort(name="t"),)), "teams and cohorts"),
        (Config(teams=(Team(name="t"), Team(name="t"))), "teams and cohorts"),
        (Config(pools=(Pool(name="-p", device="x", devices=1),)), "pools"),
        (Config(pools=(Pool(name="p", device="x", devices=-1),)), "pools.p.devices"),
        (Config(triggers=(Trigger(name="t", metric="m", above=1, pool="gone", limit=1),)), "triggers.t.pool"),
        (
            Config(
                pools=(Pool(name="p", device="x", devices=1),),
                triggers=(Trigger(name="t", metric="m", pool="p", limit=1),),
            ),
            "triggers.t",
        ),
    ],
)
def test_an_error_names_the_wrong_field(config, field):
    with pytest.raises(BadField) as wrong:
        check_config(config)
    assert wrong.value.field == field


def test_documents_without_engines_are_read_as_before():
    text = b'{"version":1,"pools":[{"name":"p","device":"x","devices":1,"site":"eu","labels":{}}]}'
    config = msgspec.json.decode(text, type=Config)
    assert config == Config(pools=(Pool(name="p", device="x", devices=1, site="eu"),))
    assert (config.engines, config.pools[0].engine, config.pools[0].options) == (None, "", {})
    check_config(config)


def pool(**kwargs):
    return Pool(name="p", device="h100", **kwargs)


NOW_S = 1000.0


def node(name, devices, wanted="use", seen_s=NOW_S):
    return Node(
        name=name, pool="p", devices=devices, wanted=wanted, why="", gone_at_s=None, heard_s=seen_s, version=1
    )


def test_the_devices_of_a_pool_are_those_of_its_present_nodes():
    nodes = (node("a", 8), node("b", 8, "drain"), node("c", 8, "failed"))
    (found,) = limit_pools((pool(devices=100),), nodes, (), (), (), now_s=NOW_S)
    assert (found.devices, found.leaving) == (16, 8)


def test_a_node_that_no_engine_sees_has_no_devices():
    """A machine that returned under another name must not count twice."""
    nodes = (node("before", 8, seen_s=NOW_S - UNSEEN_S - 1), node("after", 8))
    (found,) = limit_pools((pool(devices=100),), nodes, (), (), (), now_s=NOW_S)
    assert found.devices == 8
    # A pool without its only node does not have its declared devices either.
    (found,) = limit_pools((pool(devices=100),), nodes[:1], (), (), (), now_s=NOW_S)
    assert (found.devices, found.leaving) == (0, 0)


def test_a_capacity_and_a_trigger_take_devices_away_as_leaving():
    capacity = Capacity(pool="p", devices=6)
    trigger = Trigger(name="t", metric="inference_qps", above=100, pool="p", limit=4)
    metric = Metric(metric="inference_qps", value=101)
    assert limit_pools((pool(devices=8),), (), (capacity,), (), (trigger,), now_s=NOW_S)[0].leaving == 2
    assert (
        limit_pools((pool(devices=8),), (), (capacity,), (metric,), (trigger,), now_s=NOW_S)[0].leaving == 4
    )


@given(
    st.integers(0, 20),
    st.lists(st.tuples(st.integers(0, 8), st.sampled_from(["use", "drain", "failed"])), max_size=4),
    st.none() | st.integers(0, 30),
    st.none() | st.floats(-10, 10),
)
def test_a_limited_pool_leaves_at_most_its_devices_and_its_limit(devices, nodes, capacity, metric):
    trigger = Trigger(name="t", metric="m", above=5, below=-5, pool="p", limit=3)
    (found,) = limit_pools(
        (pool(devices=devices),),
        [node(str(number), *one) for number, one in enumerate(nodes)],
        [] if capacity is None else [Capacity(pool="p", devices=capacity)],
        [] if metric is None else [Metric(metric="m", value=metric)],
        [trigger],
        now_s=NOW_S,
    )
    assert 0 <= found.leaving <= found.devices
    staying = found.devices - found.leaving
    assert capacity is None or staying <= capacity
    assert metric is None or -5 <= metric <= 5 or staying <= 3
