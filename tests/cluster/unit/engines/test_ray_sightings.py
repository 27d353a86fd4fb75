"""What the driver of Ray has seen, and what that says about agents and nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.cluster.engines.ray.options import RayPool
from elastane.cluster.engines.ray.sightings import (
    SETTLED_S,
    STARTING_S,
    RayNode,
    SeenActor,
    Sight,
    count_others,
    decode_sight,
    describe_agents,
    list_leavers,
    list_ray_nodes,
    name_nodes,
)
from elastane.cluster.nouns.agents import SeenNode

NOW_S = 1000.0
POOL = RayPool()
GPU = {"GPU": 1.0, "CPU": 1.0}
anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=9,
)


def a_node(name="n1", free=None, **fields):
    resources = {"CPU": 8.0, "GPU": 4.0}
    return RayNode(id=f"id-{name}", name=name, resources=resources, free=free or resources, **fields)


def an_actor(number=1, **fields):
    return SeenActor(name=f"c1-{number}", **{"holds": GPU} | fields)


def describe(actor, *nodes):
    (agent,) = describe_agents(Sight((actor,), nodes or (a_node(),)))
    return agent


def count_devices(*actors, nodes=(), pool=POOL, now_s=NOW_S):
    found = list_ray_nodes("a", pool, Sight(actors, nodes or (a_node(),)), now_s)
    return {node.name: node.devices for node in found}


def test_an_actor_that_has_not_answered_waits_and_says_why():
    assert describe(an_actor()).state == "pending"
    assert describe(an_actor()).why == "Ray starts its actor"
    assert describe(an_actor(), a_node(free={"CPU": 8.0})).why == ("no node of Ray has 1 CPU, 1 GPU free now")
    assert describe(an_actor(holds={"GPU": 9.0})).why == "no node of Ray has 9 GPU: it waits for a new node"
    labelled = an_actor(labels={"market": "spot"}, needs={"accelerator_type:A100": 0.001})
    assert describe(labelled).why == (
        "no node of Ray has 1 CPU, 1 GPU, market=spot, accelerator_type:A100: it waits for a new node"
    )
    assert describe(an_actor(holds={})).why == "its actor has not answered yet"
    assert describe(an_actor(), a_node(draining=True)).why.endswith("waits for a new node")


def test_an_actor_that_answers_runs_on_its_node():
    seen = describe(an_actor(node="id-n1"))
    assert (seen.state, seen.node, seen.until_s) == ("running", "n1", None)
    assert describe(an_actor(node="id-n1", leaving=True)).state == "leaving"
    # The node is not listed any more, and its actors not dead yet.
    assert describe(an_actor(node="id-n9")).state == "running"


@pytest.mark.parametrize(
    ("fields", "why", "exit_code"),
    [
        ({"code": 3}, "it ended with exit code 3", 3),
        ({"code": 0}, "it ended with exit code 0", 0),
        ({"code": -9}, "signal 9 ended it", None),
        ({"why": "its node\nhas died"}, "its node has died", None),
        ({}, "Ray does not know its actor any more", None),
    ],
)
def test_the_end_of_an_agent_has_a_code_or_a_reason(fields, why, exit_code):
    seen = describe(an_actor(gone=True, node="id-n1", ended_s=7.0, **fields))
    assert (seen.state, seen.why, seen.exit_code, seen.ended_s) == ("gone", why, exit_code, 7.0)
    assert seen.node == "n1"


def test_agents_on_a_node_that_ray_drains_should_leave_once():
    node, other = a_node(draining=True, leaves_s=1234.0), a_node("n2")
    actors = (
        an_actor(1, node="id-n1"),
        an_actor(2, node="id-n1", leaving=True),
        an_actor(3, node="id-n1", gone=True),
        an_actor(4, node="id-n2"),
        an_actor(5),
    )
    sight = Sight(actors, (node, other))
    assert list_leavers(sight) == ["c1-1"]
    assert describe_agents(sight)[0].until_s == 1234.0
    assert "drains" in describe_agents(sight)[0].why
    assert count_devices(nodes=(node, other)) == {"n2": 4}


def test_only_what_others_hold_is_not_for_the_cluster():
    # One GPU of ours and one of others.
    held = a_node(free={"CPU": 6.0, "GPU": 2.0})
    assert count_devices(an_actor(node="id-n1"), nodes=(held,)) == {"n1": 3}
    assert count_devices(nodes=(held,)) == {"n1": 2}
    # Ray has not counted the actor yet.
    assert count_devices(an_actor(node="id-n1")) == {"n1": 4}
    full = a_node(free={"CPU": 4.0})
    assert count_devices(nodes=(full,)) == {}


def test_what_an_actor_holds_that_begins_or_has_just_ended_is_of_no_others():
    held = a_node(free={"CPU": 7.0, "GPU": 3.0})
    assert count_devices(an_actor(asked_s=NOW_S), nodes=(held,)) == {"n1": 4}
    assert count_devices(an_actor(asked_s=NOW_S - STARTING_S), nodes=(held,)) == {"n1": 3}
    ended = an_actor(node="id-n1", gone=True, ended_s=NOW_S)
    assert count_devices(ended, nodes=(held,)) == {"n1": 4}
    assert count_devices(ended, nodes=(held,), now_s=NOW_S + SETTLED_S) == {"n1": 3}


def test_a_pool_has_the_nodes_with_its_labels_and_its_accelerator():
    fast = RayNode(
        id="f",
        name="fast",
        resources={"CPU": 8.0, "GPU": 4.0, "accelerator_type:A100": 1.0},
        free={"CPU": 8.0, "GPU": 4.0, "accelerator_type:A100": 0.999},
        labels={"market": "spot"},
    )
    nodes = (a_node(), fast)
    assert count_devices(nodes=nodes) == {"fast": 4, "n1": 4}
    assert count_devices(nodes=nodes, pool=RayPool(accelerator="A100")) == {"fast": 4}
    assert count_devices(nodes=nodes, pool=RayPool(labels={"market": "spot"})) == {"fast": 4}
    assert count_devices(nodes=nodes, pool=RayPool(labels={"market": "other"})) == {}
    assert count_devices(nodes=nodes, pool=RayPool(resource="CPU")) == {"fast": 8, "n1": 8}
    assert count_devices(nodes=nodes, pool=RayPool(cpus_per_device=5)) == {"fast": 1, "n1": 1}
    assert count_devices(nodes=nodes, pool=RayPool(resource="CPU", cpus_per_device=3)) == {"fast": 2, "n1": 2}
    assert count_devices(nodes=nodes, pool=RayPool(resource="TPU")) == {}


def test_nodes_of_one_name_are_told_apart_by_their_ids():
    nodes = [RayNode(id="abcdef0123456", name="10.0.0.1"), RayNode(id="123456789abc", name="10.0.0.1")]
    assert name_nodes(nodes) == {"abcdef0123456": "10.0.0.1-abcdef01", "123456789abc": "10.0.0.1-12345678"}
    assert name_nodes([RayNode(id="abcdef0123456", name="a b\x1b[1m")]) == {"abcdef0123456": "a-b-1m"}
    assert name_nodes([RayNode(id="abcdef0123456")]) == {"abcdef0123456": "abcdef01"}


def test_an_actor_that_cannot_be_read_waits_and_hides_no_other():
    answer = {
        "actors": [
            {"name": "c1-1", "node": "id-n1", "holds": GPU},
            {"name": "c1-2", "node": 7},
            {"name": "c1-3", "node": "id-n1", "holds": {"GPU": "many"}},
            {"name": "c2-4", "node": "id-n1"},
            {"name": "intruder"},
            {"name": ["c1-5"]},
            {},
        ],
        "nodes": [{"id": "id-n1", "name": "n1", "resources": GPU}, {"name": "no id"}, {"id": 3}],
    }
    sight = decode_sight(answer, "c1")
    assert [(agent.id, agent.state) for agent in describe_agents(sight)] == [
        ("c1-1", "running"),
        ("c1-2", "pending"),
        ("c1-3", "pending"),
    ]
    assert [node.id for node in sight.nodes] == ["id-n1"]


@given(
    st.lists(st.dictionaries(st.sampled_from(["name", "node", "holds", "code", "ended_s"]), anything)),
    st.lists(st.dictionaries(st.sampled_from(["id", "name", "resources", "free", "labels"]), anything)),
)
def test_no_answer_breaks_the_decisions(actors, nodes):
    actors = [*actors, {"name": "c1-7", "node": "id-n1"}]
    sight = decode_sight({"actors": actors, "nodes": nodes}, "c1")
    assert "c1-7" in {agent.id for agent in describe_agents(sight)}
    assert all(
        isinstance(node, SeenNode) and node.devices > 0
        for node in list_ray_nodes("a", RayPool(), sight, NOW_S)
    )
    list_leavers(sight)


@given(
    st.lists(st.sampled_from(["", "id-n1", "id-n2"]), max_size=8),
    st.lists(st.integers(0, 4), min_size=2, max_size=2),
)
def test_others_never_hold_less_than_nothing_or_more_than_is_not_free(places, free):
    nodes = [
        a_node(name, free={"GPU": float(left), "CPU": 8.0})
        for name, left in zip(("n1", "n2"), free, strict=True)
    ]
    actors = [an_actor(number, node=place, asked_s=NOW_S) for number, place in enumerate(places)]
    for node in nodes:
        others = count_others(nodes, actors, NOW_S)[node.id]
        assert 0 <= others["GPU"] <= node.resources["GPU"] - node.free["GPU"]
