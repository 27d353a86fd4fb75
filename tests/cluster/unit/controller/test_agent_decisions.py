"""Which agents start and leave, and the instruction of each. Properties over generated agents."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.cluster.controller.agents.agent_job import AgentJob
from elastane.cluster.controller.agents.decisions import (
    AFTER_OUTCOME_S,
    LONGEST_PAUSE_S,
    LONGEST_WHY,
    add_last_words,
    choose_agent_workers,
    choose_asks,
    choose_deadlines,
    choose_instruction,
    compute_grace_s,
    compute_setback_s,
    count_wanted,
    has_failed,
    judge_loss,
    judge_start,
    lacks_reason,
    must_hear,
    takes_part,
    update_agent,
)
from elastane.cluster.controller.agents.stored_agent import StoredAgent, StoredRun
from elastane.cluster.controller.jobs.retries import MISSING_OUTCOME
from elastane.cluster.nouns.agents import SeenAgent
from elastane.cluster.nouns.arrivals import AskAgain, Begin, Join, NotWanted
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec, WorkerResources
from elastane.cluster.nouns.pools import Pool
from elastane.run.nouns.attempts import RETRYABLE

NOW_S = 1000.0
POOLS = ("a100", "spot")


def make_job(wanted, *, low=1, high=8, attempt=1, drain_until_s=0.0) -> AgentJob:
    spec = JobSpec(name="j", team="t", elastic_policy=ElasticPolicy(min_replicas=low, max_replicas=high))
    return AgentJob(
        spec=spec, wanted=wanted, attempt=attempt, run_dir="/shared/runs/j", drain_until_s=drain_until_s
    )


def make_agent(number, *, pool="a100", workers=1, **fields) -> StoredAgent:
    agent = StoredAgent(
        number=number,
        job="j",
        engine="hpc",
        pool=pool,
        workers=workers,
        devices=workers,
        key=b"k" * 16,
        asked_s=0.0,
    )
    return msgspec.structs.replace(agent, **fields)


def arrive(agent, attempt=0):
    return msgspec.structs.replace(agent, state="arrived", started_s=1.0, arrived_s=2.0, attempt=attempt)


@st.composite
def agent_sets(draw, sizes=(1,)):
    agents = []
    for number in range(1, draw(st.integers(0, 8)) + 1):
        place = {"pool": draw(st.sampled_from(POOLS)), "node": draw(st.sampled_from("mn"))}
        agent = make_agent(number, workers=draw(st.sampled_from(sizes)), **place)
        agent = draw(st.sampled_from([agent, arrive(agent), arrive(agent, 1)]))
        if draw(st.booleans()):
            agent = msgspec.structs.replace(agent, leave_by_s=draw(st.sampled_from([NOW_S - 5, NOW_S + 5])))
        agents.append(agent)
    return tuple(agents)


wanted_sizes = st.dictionaries(st.sampled_from(POOLS), st.integers(1, 6), min_size=1)


APPTAINER = """\
WARNING: some warning
FATAL:   Unable to handle docker://team/train:1 uri: connection refused
"""
ENROOT = """\
slurmstepd: error: pyxis: failed to import docker image
slurmstepd: error: pyxis:     [ERROR] URL https://r/v2 returned error code: 401 Unauthorized
srun: error: n1: task 0: Exited with exit code 1
"""


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", "it ended with exit code 255"),
        (APPTAINER, "255; its log says: FATAL:   Unable to handle docker://team/train:1 uri"),
        (ENROOT, "URL https://r/v2 returned error code: 401 Unauthorized"),
        ("\x1b[91mFATAL: red\x1b[0m\nlast\n", "its log says: FATAL: red"),
        ("env: 'elastane': No such file\n\n", "its log says: env: 'elastane': No such file"),
        ("env: no such file\nsrun: error: n1: task 0: Exited\n", "its log says: env: no such file"),
        ("srun: error: Unable to create step\n", "its log says: srun: error: Unable to create step"),
        ("\x1b]0;title\x07\x00", "\\x1b]0;title"),
        ("x" * 9000, "xxx"),
    ],
)
def test_an_agent_that_could_not_start_says_why_in_the_words_of_its_log(log, words):
    seen = SeenAgent(id="c1-1", state="gone", why="it ended with exit code 255", exit_code=255)
    why = add_last_words(seen, log).why
    assert words in why
    assert len(why) <= LONGEST_WHY
    assert why.isprintable()


def test_the_log_is_read_only_for_agents_that_failed_without_a_word():
    gone = SeenAgent(id="c1-1", state="gone", exit_code=255)
    assert lacks_reason(make_agent(1), gone)
    assert not lacks_reason(make_agent(1), msgspec.structs.replace(gone, exit_code=0))
    assert not lacks_reason(make_agent(1), msgspec.structs.replace(gone, exit_code=None))
    assert not lacks_reason(make_agent(1), msgspec.structs.replace(gone, state="running"))
    assert not lacks_reason(make_agent(1, exit_code=2, why="no torch"), gone)
    assert not lacks_reason(make_agent(1, leave_by_s=1.0), gone)
    assert not lacks_reason(arrive(make_agent(1)), gone)


@given(agents=agent_sets(), wanted=wanted_sizes, runs=st.booleans())
def test_after_asks_and_leavers_a_job_has_what_it_should_have(agents, wanted, runs):
    job, run = make_job(wanted), StoredRun(job="j", attempt=1, beginner=1) if runs else None
    leavers = choose_deadlines(agents, job, run, NOW_S)
    asks = choose_asks(job, agents, {})
    # No pool gives agents back and asks for others.
    assert not asks.keys() & {agent.pool for agent in agents if agent.number in leavers}
    assert all(agent.is_wanted for agent in agents if agent.number in leavers)
    staying = count_wanted(agent for agent in agents if agent.number not in leavers)
    for pool in POOLS:
        assert staying.get(pool, 0) + sum(asks.get(pool, ())) == wanted.get(pool, 0)


@given(agents=agent_sets(sizes=(1, 2, 3)), wanted=wanted_sizes, size=st.integers(1, 4))
def test_agents_of_several_workers_too_give_a_job_what_it_should_have(agents, wanted, size):
    job = make_job(wanted)
    leavers = choose_deadlines(agents, job, None, NOW_S)
    agents = [
        msgspec.structs.replace(agent, leave_by_s=leavers.get(agent.number, agent.leave_by_s))
        for agent in agents
    ]
    asks = choose_asks(job, agents, dict.fromkeys(POOLS, size))
    for pool in POOLS:
        staying = [agent.workers for agent in agents if agent.is_wanted and agent.pool == pool]
        assert sum(staying) + sum(asks.get(pool, ())) == wanted.get(pool, 0)
        assert set(asks.get(pool, ())) <= {size, 1}
    # What stays and what was asked for needs no further change.
    assert choose_deadlines(agents, job, None, NOW_S) == {}


@given(count=st.integers(1, 6), back=st.integers(0, 6), size=st.integers(1, 4))
def test_a_shrink_by_whole_agents_divides_none(count, back, size):
    agents = [make_agent(number, workers=size) for number in range(1, count + 1)]
    kept = max(1, count - back)
    job = make_job({"a100": kept * size})
    leavers = choose_deadlines(agents, job, None, NOW_S)
    assert len(leavers) == count - kept
    assert choose_asks(job, [agent for agent in agents if agent.number not in leavers], {"a100": size}) == {}


@pytest.mark.parametrize(
    ("policy", "option", "workers"),
    [
        (ElasticPolicy(min_replicas=8, max_replicas=8), "", 1),
        (ElasticPolicy(min_replicas=8, max_replicas=8), "8", 8),
        (ElasticPolicy(min_replicas=6, max_replicas=6), "4", 3),
        (ElasticPolicy(min_replicas=8, max_replicas=8), "64", 8),
        (ElasticPolicy(min_replicas=12, max_replicas=12), "64", 6),
        (ElasticPolicy(min_replicas=4, max_replicas=16, replica_increment_step=4), "8", 4),
        (ElasticPolicy(min_replicas=2, max_replicas=8, replica_increment_step=3), "8", 1),
        (ElasticPolicy(replica_discrete_values=(4, 8, 16)), "8", 4),
        (ElasticPolicy(replica_discrete_values=(1, 8)), "8", 1),
        # The scheduler may choose any size in between.
        (ElasticPolicy(min_replicas=4, max_replicas=8), "8", 1),
        (ElasticPolicy(min_replicas=8, max_replicas=8), "many", 1),
    ],
)
def test_every_size_of_a_job_is_a_multiple_of_the_workers_of_its_agents(policy, option, workers):
    options = {"workersPerAgent": option} if option else {}
    pool = Pool(name="a100", device="a100", devices=64, engine="hpc", options=options)
    assert choose_agent_workers(JobSpec(name="j", team="t", elastic_policy=policy), pool) == workers


def test_an_agent_has_no_more_workers_than_devices_on_a_node():
    pool = Pool(name="a", device="a", devices=64, devices_per_node=8, options={"workersPerAgent": "8"})
    for devices, workers in ((1, 8), (2, 4), (3, 2), (8, 1), (16, 1)):
        spec = JobSpec(
            name="j",
            team="t",
            resources_per_worker=WorkerResources(devices=devices),
            elastic_policy=ElasticPolicy(min_replicas=8, max_replicas=8),
        )
        assert choose_agent_workers(spec, pool) == workers


@given(agents=agent_sets(), wanted=wanted_sizes)
def test_agents_that_have_not_arrived_leave_first_then_those_on_leaving_nodes(agents, wanted):
    leavers = choose_deadlines(agents, make_job(wanted), None, NOW_S, leaving_nodes={"m"})
    for pool in POOLS:
        here = [agent for agent in agents if agent.is_wanted and agent.pool == pool]
        leaving = [agent for agent in here if agent.number in leavers]
        staying = [agent for agent in here if agent.number not in leavers]
        if any(not agent.has_arrived for agent in staying):
            assert not any(agent.has_arrived for agent in leaving)
        if any(agent.node == "m" and agent.has_arrived for agent in staying):
            assert not any(agent.node == "n" and agent.has_arrived for agent in leaving)


@given(agents=agent_sets(), has_ended=st.booleans())
def test_agents_of_a_run_that_is_stopped_are_left_to_the_stop(agents, has_ended):
    run, job = StoredRun(job="j", attempt=1, beginner=1), None if has_ended else make_job({})
    leavers = choose_deadlines(agents, job, run, NOW_S)
    assert leavers.keys() == {
        agent.number for agent in agents if agent.is_wanted and not takes_part(agent, run)
    }


def test_agents_of_an_attempt_that_is_over_may_take_a_while_to_end():
    agents = (arrive(make_agent(1), 1), arrive(make_agent(2)), make_agent(3))
    run = StoredRun(job="j", attempt=1, beginner=1)
    found = choose_deadlines(agents, make_job({"a100": 3}), run, NOW_S, is_over=True)
    # The others wait for the next attempt.
    assert found == {1: NOW_S + AFTER_OUTCOME_S}


def test_an_agent_leaves_by_the_deadline_of_the_shrink():
    agents = (arrive(make_agent(1), 1), arrive(make_agent(2), 1))
    run = StoredRun(job="j", attempt=1, beginner=1)
    assert choose_deadlines(agents, make_job({"a100": 1}, drain_until_s=NOW_S + 7), run, NOW_S) == {
        2: NOW_S + 7
    }
    late = make_job({"a100": 1}, drain_until_s=NOW_S - 7)
    assert choose_deadlines(agents, late, run, NOW_S) == {2: NOW_S + late.grace_s}


@pytest.mark.parametrize(
    ("agent", "grace_s"),
    [
        (make_agent(1, leave_by_s=NOW_S + 9), 0.0),
        (make_agent(1, leave_by_s=NOW_S + 9, started_s=1.0), 9.0),
        (arrive(make_agent(1, leave_by_s=NOW_S + 9)), 9.0),
        (arrive(make_agent(1, leave_by_s=NOW_S - 9)), 0.0),
    ],
)
def test_an_agent_that_has_not_begun_has_nothing_to_finish(agent, grace_s):
    assert compute_grace_s(agent, NOW_S) == grace_s


# -- instructions --------------------------------------------------------------------------------------------


def test_the_first_agent_begins_once_the_fewest_have_arrived_and_the_others_join():
    job, agents = make_job({"a100": 3}, low=2), [arrive(make_agent(1)), make_agent(2), make_agent(3)]
    told = choose_instruction(agents[0], job, None, agents)
    assert isinstance(told, AskAgain)
    assert told.why == "1 of the 2 workers with which job j begins have arrived"
    agents[1] = arrive(agents[1])
    told = choose_instruction(agents[1], job, None, agents)
    assert told == Begin(
        run_dir=job.run_dir, attempt=1, workers=1, limits=(2, 8), spec=job.spec, submitted_s=0.0
    )
    run, agents[1] = StoredRun(job="j", attempt=1, beginner=2), arrive(agents[1], 1)
    # Its answer may have been lost.
    assert choose_instruction(agents[1], job, run, agents) == told
    assert isinstance(choose_instruction(agents[0], job, run, agents), AskAgain)
    answering = msgspec.structs.replace(run, answers=True)
    assert choose_instruction(agents[0], job, answering, agents) == Join(
        run_dir=job.run_dir, attempt=1, workers=1, spec=job.spec
    )


def test_an_agent_that_waited_through_an_attempt_begins_the_next_one():
    job, late = make_job({"a100": 1}, attempt=3), arrive(make_agent(9))
    over = StoredRun(job="j", attempt=2, beginner=4, answers=True)
    told = choose_instruction(late, job, over, [late])
    assert isinstance(told, Begin)
    assert told.attempt == 3


@pytest.mark.parametrize(
    ("agent", "job"),
    [
        (arrive(make_agent(1, leave_by_s=NOW_S)), make_job({"a100": 1})),
        (arrive(make_agent(1)), make_job({})),
        (arrive(make_agent(1)), None),
    ],
    ids=["leaves", "job-waits", "job-has-ended"],
)
def test_an_agent_that_is_not_needed_is_told_so(agent, job):
    assert isinstance(choose_instruction(agent, job, None, [agent]), NotWanted)


# -- what engines show ---------------------------------------------------------------------------------------


def test_an_agent_of_an_engine_that_never_got_the_request_is_asked_for_again():
    asked = make_agent(1)
    assert update_agent(asked, None, NOW_S, is_heard=False) == asked
    leaving = make_agent(1, leave_by_s=NOW_S)
    assert update_agent(leaving, None, NOW_S, is_heard=False).is_gone


def test_what_the_run_hears_counts_for_more_than_what_the_engine_says():
    agent, gone = arrive(make_agent(1), 1), SeenAgent(id="c-1", state="gone", why="NODE_FAIL")
    heard = update_agent(agent, gone, NOW_S, is_heard=True)
    assert not heard.is_gone
    assert heard.has_arrived
    assert "its run still hears it" in heard.why
    silent = update_agent(heard, gone, NOW_S, is_heard=False)
    assert (silent.state, silent.why, silent.ended_s) == ("gone", "NODE_FAIL", NOW_S)


def test_an_agent_goes_through_its_states():
    agent = make_agent(1)
    pending = SeenAgent(id="c-1", state="pending", why="Resources")
    # Its request was not noted, so it is repeated: it may be incomplete.
    assert update_agent(agent, pending, 1.0, is_heard=False).state == "asked"
    leaving = msgspec.structs.replace(agent, leave_by_s=9.0)
    assert update_agent(leaving, pending, 1.0, is_heard=False).state == "pending"
    agent = update_agent(msgspec.structs.replace(agent, state="pending"), pending, 1.0, is_heard=False)
    assert (agent.state, agent.why, agent.started_s) == ("pending", "Resources", None)
    agent = update_agent(agent, SeenAgent(id="c-1", state="running", node="n1"), 2.0, is_heard=False)
    assert (agent.state, agent.node, agent.started_s) == ("running", "n1", 2.0)
    agent = arrive(agent)
    agent = update_agent(agent, SeenAgent(id="c-1", state="running", node="n1"), 4.0, is_heard=False)
    assert agent.state == "arrived"
    agent = update_agent(agent, SeenAgent(id="c-1", state="leaving", node="n1"), 5.0, is_heard=False)
    assert (agent.state, agent.has_arrived) == ("leaving", True)
    agent = update_agent(agent, None, 6.0, is_heard=False)
    assert (agent.is_gone, agent.ended_s) == (True, 6.0)


def test_the_words_of_an_agent_are_nearer_to_the_cause_than_those_of_its_engine():
    agent = arrive(make_agent(1, exit_code=2, why="torch is missing"))
    gone = update_agent(
        agent, SeenAgent(id="c-1", state="gone", why="FAILED", exit_code=2), NOW_S, is_heard=False
    )
    assert gone.why == "torch is missing"
    assert judge_start(gone).code == 2
    assert "torch is missing" in judge_start(gone).why
    killed = make_agent(1, state="gone", node="n7")
    assert judge_start(killed).code == RETRYABLE
    assert "on n7 ended before the attempt began: it said nothing" in judge_start(killed).why
    assert judge_loss(killed) == MISSING_OUTCOME
    lost = make_agent(1, state="gone", why="Ray has lost its head")
    assert judge_loss(lost).why.endswith("without an outcome: Ray has lost its head")
    assert judge_loss(lost).code == MISSING_OUTCOME.code


@pytest.mark.parametrize(
    ("fields", "failed"),
    [
        ({}, True),
        ({"exit_code": 2, "attempt": 1}, True),
        ({"exit_code": 0, "attempt": 1}, False),
        ({"attempt": 1, "arrived_s": 0.0, "ended_s": 600.0}, False),
        ({"attempt": 1, "arrived_s": 0.0, "ended_s": 9.0}, True),
        ({"leave_by_s": 1.0}, False),
    ],
    ids=["never-arrived", "join-refused", "run-over", "node-lost", "killed-soon", "asked-to-leave"],
)
def test_only_ends_that_may_repeat_themselves_slow_down_the_next_request(fields, failed):
    assert has_failed(make_agent(1, state="gone", **fields)) is failed


@given(failures=st.integers(0, 2000))
def test_pauses_grow_and_stay_bounded(failures):
    assert compute_setback_s(failures) <= compute_setback_s(failures + 1) <= LONGEST_PAUSE_S


def test_an_agent_of_an_attempt_that_is_over_ends_by_itself_if_it_has_the_time():
    run, late = StoredRun(job="j", attempt=1, beginner=1), arrive(make_agent(1, leave_by_s=NOW_S - 1), 1)
    soon = msgspec.structs.replace(late, leave_by_s=NOW_S + 1)
    assert not must_hear(soon, run, NOW_S, is_over=True)
    assert must_hear(late, run, NOW_S, is_over=True)
    assert must_hear(soon, run, NOW_S, is_over=False)
    assert must_hear(arrive(make_agent(2, leave_by_s=NOW_S + 1)), run, NOW_S, is_over=True)
