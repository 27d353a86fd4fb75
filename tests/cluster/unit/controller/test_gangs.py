"""Which agents begin together, and which take the places of others. Properties over generated histories."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastane.cluster.controller.agents.agent_job import AgentJob
from elastane.cluster.controller.agents.decisions import choose_deadlines
from elastane.cluster.controller.agents.gangs import (
    choose_new_agents,
    choose_stranded,
    divide_minimum,
    hash_shape,
)
from elastane.cluster.controller.agents.stored_agent import StoredAgent
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec

NOW_S = 1000.0
SHAPES = {"a100": "s1"}
SIZES = {"a100": 1, "spot": 1}


def make_job(wanted, low=2, high=8) -> AgentJob:
    spec = JobSpec(name="j", team="t", elastic_policy=ElasticPolicy(min_replicas=low, max_replicas=high))
    return AgentJob(spec=spec, wanted=wanted, attempt=1, run_dir="/shared/runs/j")


def make_agent(number, *, gang=0, size=0, pool="a100", shape="s1", **fields) -> StoredAgent:
    agent = StoredAgent(
        number=number,
        job="j",
        engine="east",
        pool=pool,
        workers=1,
        devices=1,
        key=b"k" * 16,
        gang=gang,
        gang_size=size,
        shape=shape if gang else "",
        asked_s=0.0,
    )
    return msgspec.structs.replace(agent, **fields)


def arrive(agent, **fields) -> StoredAgent:
    return msgspec.structs.replace(
        agent, state="arrived", node="n1", started_s=1.0, arrived_s=2.0, attempt=1, **fields
    )


def end(agent, exit_code, is_replaceable=None) -> StoredAgent:
    free = exit_code != 0 if is_replaceable is None else is_replaceable
    return msgspec.structs.replace(
        agent, state="gone", exit_code=exit_code, is_replaceable=free, ended_s=NOW_S
    )


def list_gangs(new) -> list[tuple[int, int]]:
    return [(one.gang, one.gang_size) for one in new]


def test_a_job_begins_with_a_gang_of_its_fewest_workers_and_grows_once_they_have_arrived():
    job = make_job({"a100": 4})
    assert list_gangs(choose_new_agents(job, (), (), SIZES, SHAPES)) == [(0, 2), (0, 2)]
    waiting = [make_agent(1, gang=1, size=2), make_agent(2, gang=1, size=2)]
    assert choose_new_agents(job, waiting, (), SIZES, SHAPES) == ()
    assert choose_new_agents(job, [arrive(waiting[0]), waiting[1]], (), SIZES, SHAPES) == ()
    here = [arrive(agent) for agent in waiting]
    assert list_gangs(choose_new_agents(job, here, (), SIZES, SHAPES)) == [(0, 0), (0, 0)]


def test_the_members_of_a_gang_have_as_many_workers_each():
    job = make_job({"a100": 8}, low=4)
    found = choose_new_agents(job, (), (), {"a100": 4}, SHAPES)
    assert [(one.workers, one.gang_size, one.shape) for one in found] == [(4, 1, "s1:4")]
    # Another pool has taken an odd part of the job.
    found = choose_new_agents(make_job({"a100": 5}, low=5), (), (), {"a100": 2}, SHAPES)
    gangs = [(one.workers, one.gang_size, one.shape) for one in found]
    assert gangs == [(2, 2, "s1:2"), (2, 2, "s1:2"), (1, 1, "s1")]


def test_without_a_queue_all_agents_are_asked_for_at_once_and_alone():
    assert list_gangs(choose_new_agents(make_job({"a100": 3}), (), (), SIZES, {})) == [(0, 0)] * 3


def test_each_pool_with_a_queue_has_a_gang_for_its_part_of_the_fewest():
    job = make_job({"a100": 2, "spot": 3}, low=3)
    assert divide_minimum(job) == {"a100": 2, "spot": 1}
    found = choose_new_agents(job, (), (), SIZES, SHAPES | {"spot": "s2"})
    assert [(one.pool, one.gang_size, one.shape) for one in found] == [
        ("a100", 2, "s1"),
        ("a100", 2, "s1"),
        ("spot", 1, "s2"),
    ]


@pytest.mark.parametrize(
    ("exit_code", "is_replaceable", "gang"),
    [
        (1, True, (1, 2)),
        (None, True, (1, 2)),
        # Its quota is free, and Kueue would delete another pod of the group.
        (0, False, (0, 1)),
        # It was removed by force from a machine that is lost.
        (None, False, (0, 1)),
    ],
)
def test_only_a_member_that_failed_is_replaced_within_its_gang(exit_code, is_replaceable, gang):
    living = [arrive(make_agent(1, gang=1, size=2)), *map(arrive, [make_agent(3), make_agent(4)])]
    gone = [end(make_agent(2, gang=1, size=2), exit_code, is_replaceable)]
    assert list_gangs(choose_new_agents(make_job({"a100": 4}), living, gone, SIZES, SHAPES)) == [gang]


def test_a_member_on_its_way_out_still_has_its_place():
    living = [arrive(make_agent(1, gang=1, size=2)), arrive(make_agent(2, gang=1, size=2), leave_by_s=NOW_S)]
    assert list_gangs(choose_new_agents(make_job({"a100": 2}), living, (), SIZES, SHAPES)) == [(0, 1)]


def test_a_member_of_another_shape_joins_no_gang_that_would_never_admit_it():
    living = [arrive(make_agent(1, gang=1, size=2))]
    gone = [end(make_agent(2, gang=1, size=2), 1)]
    job, changed = make_job({"a100": 2}), {"a100": "s2"}
    assert list_gangs(choose_new_agents(job, living, gone, SIZES, changed)) == [(0, 1)]
    assert hash_shape([{"a": "1", "b": "2"}]) == hash_shape([{"b": "2", "a": "1"}])
    assert hash_shape([{"a": "1"}]) != hash_shape([{"a": "2"}])


def test_when_all_members_are_gone_the_next_attempt_has_a_new_gang():
    growth = [arrive(make_agent(3)), arrive(make_agent(4))]
    gone = [end(make_agent(number, gang=1, size=2), 1) for number in (1, 2)]
    for living in ((), growth):
        wanted = make_job({"a100": len(living) + 2})
        assert list_gangs(choose_new_agents(wanted, living, gone, SIZES, SHAPES)) == [(0, 2), (0, 2)]


def test_a_minimum_raised_while_the_job_runs_is_covered_by_another_gang():
    living = [arrive(make_agent(1, gang=1, size=2)), arrive(make_agent(2, gang=1, size=2))]
    found = choose_new_agents(make_job({"a100": 4}, low=4), living, (), SIZES, SHAPES)
    assert list_gangs(found) == [(0, 2), (0, 2)]
    waiting = [make_agent(3, gang=3, size=2), make_agent(4, gang=3, size=2)]
    # Beside one that runs, a gang may be small.
    assert choose_stranded(make_job({"a100": 4}, low=4), [*living, *waiting], (), ()) == ()


@pytest.mark.parametrize(
    ("agents", "gone", "low", "stranded"),
    [
        pytest.param([make_agent(1, gang=1, size=2)], [], 2, (), id="others may still be asked for"),
        pytest.param(
            [make_agent(1, gang=1, size=2), make_agent(2, gang=1, size=2, leave_by_s=NOW_S)],
            [],
            1,
            (1,),
            id="one that waited leaves",
        ),
        pytest.param(
            [make_agent(1, gang=1, size=2), make_agent(2, gang=1, size=2)],
            [],
            3,
            (1, 2),
            id="the job needs more before it has begun",
        ),
        pytest.param(
            [make_agent(3, gang=1, size=2)],
            [end(make_agent(number, gang=1, size=2, node="n1"), 1) for number in (1, 2)],
            2,
            (3,),
            id="all that ran are gone",
        ),
        pytest.param(
            [make_agent(3, gang=1, size=2), arrive(make_agent(1, gang=1, size=2))],
            [end(make_agent(2, gang=1, size=2, node="n1"), 1)],
            2,
            (),
            id="another member runs",
        ),
        pytest.param(
            [make_agent(3, gang=1, size=2), make_agent(4, gang=1, size=2, node="n1")],
            [end(make_agent(2, gang=1, size=2, node="n1"), 1)],
            2,
            (),
            id="another member prepares its container",
        ),
    ],
)
def test_members_that_would_wait_for_ever_leave(agents, gone, low, stranded):
    assert choose_stranded(make_job({"a100": 8}, low=low), agents, gone, ()) == stranded


def test_growth_leaves_before_members_of_a_gang_do():
    agents = [
        arrive(make_agent(1, gang=1, size=2)),
        make_agent(5, gang=1, size=2),
        arrive(make_agent(3)),
        make_agent(4),
    ]
    assert choose_deadlines(agents, make_job({"a100": 3}), None, NOW_S).keys() == {4}
    assert choose_deadlines(agents, make_job({"a100": 2}), None, NOW_S).keys() == {3, 4}


@settings(max_examples=50)
@given(st.data())
def test_no_history_fills_a_gang_twice_or_leaves_the_fewest_uncovered(data):
    """Agents arrive, fail and leave; a job changes its size and its fewest workers."""
    living: list[StoredAgent] = []
    gone: list[StoredAgent] = []
    number, workers = 0, data.draw(st.sampled_from([1, 2]))
    for _ in range(data.draw(st.integers(1, 12))):
        fewest = data.draw(st.integers(1, 3))
        low = fewest * workers
        job = make_job({"a100": data.draw(st.integers(fewest, 5)) * workers}, low=low)
        leaving = choose_deadlines(living, job, None, NOW_S)
        leaving |= dict.fromkeys(choose_stranded(job, living, gone, leaving.keys()), NOW_S)
        living = [
            msgspec.structs.replace(one, leave_by_s=NOW_S) if one.number in leaving else one for one in living
        ]
        begun, before = 0, len(living)
        for new in choose_new_agents(job, living, gone, {"a100": workers}, SHAPES):
            number += 1
            begins = new.gang_size > 0 and not new.gang
            begun = number if begins and not begun else begun
            gang = begun if begins else new.gang
            shape = {"shape": new.shape, "workers": new.workers}
            living.append(make_agent(number, gang=gang, size=new.gang_size, **shape))
        for gang in {one.gang for one in living if one.gang}:
            members = [one for one in living if one.gang == gang]
            taken = len(members) + sum(1 for one in gone if one.gang == gang and not one.is_replaceable)
            assert taken <= members[0].gang_size
            assert {one.gang_size for one in members} == {members[0].gang_size}
        staying = [one for one in living if one.is_wanted]
        assert sum(one.workers for one in staying) >= low
        # Those that were there before a minimum rose stay as they are.
        if any(not one.gang for one in living[before:]):
            assert sum(one.workers for one in staying if one.gang) >= low
            assert sum(one.workers for one in staying if one.has_arrived) >= low
        happened = {}
        for one in living:
            choice = data.draw(st.sampled_from(["stay", "arrive", "fail", "leave"]))
            if choice == "arrive" and one.is_wanted:
                happened[one.number] = arrive(one)
            elif choice == "fail" or not one.is_wanted:
                happened[one.number] = end(one, 1 if one.node else None)
            elif choice == "leave" and one.node:
                happened[one.number] = end(one, 0)
        living = [happened.get(one.number, one) for one in living]
        gone += [one for one in living if one.is_gone]
        living = [one for one in living if not one.is_gone]
        there = {one.gang for one in living}
        gone = [one for one in gone if one.gang in there]
