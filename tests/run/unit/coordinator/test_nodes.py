"""Nodes join a run with their slots, leave it, and are lost with all their workers at once."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.run.coordinator.actions import SendToAgent
from elastane.run.coordinator.event_summary import summarize_events
from elastane.run.coordinator.nodes import choose_successor
from elastane.run.coordinator.placement import (
    NodeLoad,
    deal_target,
    grant_numbers,
    list_node_addresses,
    order_members,
)
from elastane.run.coordinator.roster import Nodes
from elastane.run.nouns.control import (
    AgentReport,
    AskDrain,
    AskDrainNode,
    AskResize,
    AskStatus,
    HandOver,
    KillWorker,
    PeerLost,
    SetTarget,
    TrafficBytes,
    WorkerExit,
)
from elastane.run.nouns.membership import Member, NodeAddress
from elastane.run.nouns.silence_limits import LISTEN_S, SilenceLimits
from tests.run.unit.coordinator.conftest import PINNED, OtherNode

LIMITS = SilenceLimits()


def list_targets(stage) -> dict[str, int]:
    """Return the last order to each node."""
    return {
        action.node: action.message.target
        for action in stage.actions
        if isinstance(action, SendToAgent) and isinstance(action.message, SetTarget)
    }


def test_a_node_joins_with_its_slots_and_numbers_of_its_own(two_nodes) -> None:
    stage, node = two_nodes
    assert node.order.target == 2
    assert stage.roster.wanted.target == 4
    assert stage.list_kinds("node.joined") == ["node.joined"]


def test_the_start_of_a_worker_names_its_node(two_nodes) -> None:
    stage, _ = two_nodes
    nodes = {
        event.workers[0]: event.detail.get("node")
        for event in stage.written
        if event.kind == "worker.started"
    }
    assert nodes == {0: None, 1: None, 100: "b", 101: "b"}


def test_the_bytes_between_machines_are_recorded_once_per_generation(two_nodes) -> None:
    stage, _ = two_nodes
    for worker, sent in ((0, 10), (1, 20), (100, 30)):
        stage.report_worker(worker, traffic=TrafficBytes(sent=sent, received=1))
    assert stage.list_kinds("traffic.measured") == []
    for sent in (40, 50):
        stage.report_worker(101, traffic=TrafficBytes(sent=sent, received=1))
    found = [event for event in stage.events if event.kind == "traffic.measured"]
    assert [(event.who, event.workers) for event in found] == [
        ("the first node", (0, 1)),
        ("node b", (100, 101)),
    ]
    assert [event.detail for event in found] == [
        {"node": "", "sent_bytes": 30, "received_bytes": 2},
        {"node": "b", "sent_bytes": 70, "received_bytes": 2},
    ]
    shown = {row.worker: row.sent_bytes for row in stage.ask(AskStatus()).processes if row.role == "worker"}
    assert shown == {0: 10, 1: 20, 100: 30, 101: 50}
    # The next coordinator reads the events, and does not repeat them.
    assert summarize_events(stage.written).traffic_of == stage.newest.number


def test_a_smaller_run_keeps_its_first_workers(two_nodes) -> None:
    stage, _ = two_nodes
    stage.ask(AskResize(workers=3))
    assert list_targets(stage) == {"": 2, "b": 1}


def test_a_dead_worker_is_replaced_on_its_own_node(two_nodes) -> None:
    stage, node = two_nodes
    node.living.discard(101)
    node.exits = (WorkerExit(worker=101, pid=101, code=-9),)
    node.report()
    assert stage.newest.workers == (0, 1, 100)
    assert node.order.target == 2
    assert list_targets(stage)["b"] == 2


def test_a_node_is_lost_after_the_silence_that_the_run_allows(two_nodes) -> None:
    stage, _ = two_nodes
    stage.roster = replace(
        stage.roster, spec=msgspec.structs.replace(stage.roster.spec, silence_s=LIMITS.limit_s / 2)
    )
    heard_s = stage.now
    while stage.now + 0.25 < heard_s + LIMITS.limit_s / 2:
        stage.now += 0.25
        stage.report_agent()
    assert stage.list_kinds("node.lost") == []
    stage.now += 0.25
    stage.report_agent()
    assert stage.list_kinds("node.lost") == ["node.lost"]


def test_a_silent_node_is_lost_in_one_decision(two_nodes) -> None:
    stage, node = two_nodes
    generations = len(stage.proposals)
    for _ in range(6):
        stage.now += 0.5
        stage.report_agent()
    assert stage.now - stage.roster.nodes.heard.get("b", 0) > LIMITS.limit_s
    assert stage.newest.workers == (0, 1)
    assert len(stage.proposals) == generations + 1
    (lost,) = [event for event in stage.events if event.kind == "node.lost"]
    assert (lost.who, lost.workers) == ("node b", (100, 101))
    assert "workers 100 and 101" in lost.why
    assert stage.roster.wanted.target == 2
    # Its workers do not come back, if it was only unreachable; its slots do.
    stage.actions.clear()
    node.report()
    assert {kill.worker for kill in stage.list_messages(KillWorker)} == {100, 101}
    assert stage.list_kinds("node.joined") == ["node.joined"]
    assert (stage.roster.wanted.target, node.order.target) == (4, 2)


def test_a_worker_of_a_lost_node_waits_until_its_agent_is_heard(two_nodes) -> None:
    stage, node = two_nodes
    let_other_nodes_be_lost(stage)
    stage.adopt()
    # The network heals: new connections open at once, and an old one sends again only after some seconds.
    stage.report_worker(102, state="ready", pinned=PINNED, node="b")
    assert stage.list_dismissals() == {}
    node.living = {102}
    node.report()
    assert 102 in stage.newest.workers


def test_the_run_stops_if_all_nodes_leave_at_once(two_nodes) -> None:
    stage, node = two_nodes
    node.report(leaving=True)
    assert stage.roster.stopping is None
    stage.report_agent(leaving=True)
    assert stage.roster.stopping is not None


def test_a_later_term_excludes_members_of_a_node_that_the_agents_have_forgotten(two_nodes) -> None:
    stage, _ = two_nodes
    successor = stage.start_successor(wait=False, agent=False)
    for _ in range(9):
        successor.now += 0.5
        # The coordinator in between has lost node b and was superseded before the members learned of it.
        successor.report_agent(target=2, total=2, nodes=(NodeAddress(""),))
        for worker in (0, 1):
            successor.report_worker(worker)
    assert successor.newest.workers == (0, 1)


def test_a_worker_that_left_is_not_taken_for_a_script_that_ended(two_nodes) -> None:
    stage, node = two_nodes
    stage.ask(AskDrain(worker=101))
    stage.adopt()
    stage.report_worker(101, state="leaving")
    node.living, node.exits = {100}, (WorkerExit(worker=101, pid=101, code=0),)
    node.report()
    assert stage.list_kinds("worker.left") == ["worker.left"]
    # To the next coordinator its members report the generation that names it, and their broken connections.
    successor = stage.start_successor(wait=False, agent=False)
    node.stage = successor
    successor.report_agent()
    for worker in (0, 1, 100):
        successor.report_worker(worker, complete=worker == 0)
        successor.receive(PeerLost(worker=worker, peer=101))
    successor.wait(LISTEN_S + 0.5)
    assert 101 in successor.roster.ends.excluded
    node.report()
    successor.wait(1.0)
    assert successor.roster.over is None
    assert successor.list_kinds("worker.died") == []


def let_other_nodes_be_lost(stage) -> None:
    stage.now += LIMITS.limit_s
    stage.report_agent()


@pytest.mark.parametrize("by_hand", [False, True])
def test_free_slots_take_the_place_of_a_lost_node_unless_a_user_set_the_number(two_nodes, by_hand) -> None:
    stage, _ = two_nodes
    # This node joins when the run has as many workers as it may have.
    third = OtherNode(stage, "c", slots=stage.roster.spec.max_workers)
    third.join()
    most = stage.roster.wanted.target
    assert third.order.target == most - 4
    wanted = replace(stage.roster.wanted, by_hand=by_hand)
    stage.roster = replace(stage.roster, wanted=wanted)
    for _ in range(8):
        stage.now += 0.5
        third.report()
        stage.report_agent()
    assert [event.who for event in stage.events if event.kind == "node.lost"] == ["node b"]
    assert stage.roster.wanted.target == (most - 2 if by_hand else most)
    assert third.order.target == (most - 4 if by_hand else most - 2)


def test_a_node_that_returns_takes_part_again_under_new_numbers(two_nodes) -> None:
    stage, _ = two_nodes
    let_other_nodes_be_lost(stage)
    stage.adopt()
    OtherNode(stage, "b", slots=1).join()
    assert stage.newest.workers == (0, 1, 200)


def test_the_first_node_is_lost_like_any_other(two_nodes) -> None:
    stage, node = two_nodes
    for _ in range(8):
        stage.now += 0.5
        node.report()
    (lost,) = [event for event in stage.events if event.kind == "node.lost"]
    assert (lost.who, lost.workers) == ("the first node", (0, 1))
    assert stage.newest.workers == (100, 101)
    assert stage.roster.wanted.target == 2
    # It takes part again with as many workers as it had.
    stage.report_agent(target=2, total=4, nodes=(NodeAddress(""), NodeAddress("b")), workers=())
    assert stage.roster.wanted.target == 4


def test_a_coordinator_that_hears_no_node_loses_none(two_nodes) -> None:
    stage, _ = two_nodes
    stage.wait(10 * LIMITS.limit_s)
    assert stage.list_kinds("node.lost") == []
    assert stage.newest.workers == (0, 1, 100, 101)


def test_a_leaving_node_is_drained_and_forgotten(two_nodes) -> None:
    stage, node = two_nodes
    node.report(leaving=True)
    assert stage.newest.workers == (0, 1)
    assert [member.worker for member in stage.newest.leaving] == [100, 101]
    assert stage.roster.wanted.target == 2
    assert list_targets(stage)["b"] == 0
    node.living, node.exits = set(), tuple(WorkerExit(worker=w, pid=w, code=0) for w in (100, 101))
    stage.adopt()
    assert node.farewells == 0
    node.report(leaving=True)
    assert stage.list_kinds("node.left", "worker.died") == ["node.left"]
    # The coordinator may end with the node, and the next one would miss a node that an agent still names.
    orders = [order for order in stage.list_messages(SetTarget) if order.target]
    assert orders[-1].nodes == (NodeAddress(""),)
    # The agent may end only now; it repeats its report until it knows.
    assert node.farewells == 1
    node.report(leaving=True)
    assert node.farewells == 2
    assert stage.list_kinds("node.left") == ["node.left"]
    # An agent that has not received its next order names the node still.
    stage.wait(LIMITS.limit_s)
    stage.report_agent(nodes=(NodeAddress(""), NodeAddress("b")))
    assert stage.list_kinds("node.lost") == []
    assert "b" not in stage.roster.nodes.reports


def list_successors(stage) -> list[str]:
    """Return the nodes to which the coordinator has handed over."""
    orders = [action for action in stage.actions if isinstance(action, SendToAgent)]
    return [order.node for order in orders if isinstance(order.message, HandOver)]


def test_a_coordinator_hands_over_when_its_own_node_has_left(two_nodes) -> None:
    stage, _ = two_nodes
    names = (NodeAddress(""), NodeAddress("b"))
    stage.report_agent(leaving=True, nodes=names)
    assert list_successors(stage) == []
    stage.adopt()
    stage.report_agent(leaving=True, nodes=names, workers=(), exits=ends(0, 1))
    assert stage.list_kinds("node.left", "worker.died") == ["node.left"]
    assert list_successors(stage) == ["b"]
    # The next coordinator would wait for a node that an agent still names.
    sent = [order.message for order in stage.actions if isinstance(order, SendToAgent) and order.node == "b"]
    assert [type(message) for message in sent[-2:]] == [SetTarget, HandOver]
    assert sent[-2].nodes == (NodeAddress("b"),)
    # The agent repeats its report until it knows, and the coordinator hands over once.
    stage.report_agent(leaving=True, nodes=names, workers=(), exits=ends(0, 1))
    assert list_successors(stage) == ["b"]


def test_the_node_with_the_most_workers_is_in_charge_next(two_nodes) -> None:
    stage, _ = two_nodes
    other = OtherNode(stage, "a", slots=1)
    other.join()
    assert choose_successor(stage.roster) == ""
    reports = {name: report for name, report in stage.roster.nodes.reports.items() if name}
    nodes = replace(stage.roster.nodes, reports=reports)
    assert choose_successor(replace(stage.roster, nodes=nodes)) == "b"
    leaving = {**reports, "b": msgspec.structs.replace(reports["b"], leaving=True)}
    assert choose_successor(replace(stage.roster, nodes=replace(nodes, reports=leaving))) == "a"
    assert choose_successor(replace(stage.roster, nodes=replace(nodes, reports={}))) is None


def ends(*workers: int) -> tuple[WorkerExit, ...]:
    return tuple(WorkerExit(worker=worker, pid=100 + worker, code=0) for worker in workers)


def test_a_new_coordinator_learns_the_size_of_the_run_from_any_node(two_nodes) -> None:
    stage, node = two_nodes
    successor = stage.start_successor(wait=False, agent=False)
    node.stage = successor
    node.report()
    assert successor.roster.wanted.target == 4
    assert successor.roster.term.listening
    successor.report_agent(target=2, total=4, nodes=(NodeAddress(""), NodeAddress("b")))
    for worker in (0, 1, 100, 101):
        successor.report_worker(worker)
    assert not successor.roster.term.listening
    assert successor.list_kinds("node.joined") == []
    assert successor.newest.workers == (0, 1, 100, 101)


def test_a_new_coordinator_waits_for_every_node_that_it_hears_of(two_nodes) -> None:
    stage, _ = two_nodes
    successor = stage.start_successor(wait=False, agent=False)
    successor.report_agent(target=2, total=4, nodes=(NodeAddress(""), NodeAddress("b")))
    for worker in (0, 1, 100, 101):
        successor.report_worker(worker)
    assert successor.roster.term.listening


def test_a_new_coordinator_that_hears_a_leaving_node_first_does_not_stop_the_run(two_nodes) -> None:
    """It took charge of a run on three machines when one had left, and the run ended."""
    stage, node = two_nodes
    names = (NodeAddress(""), NodeAddress("b"))
    node.stage = successor = stage.start_successor(wait=False, agent=False)
    node.order = msgspec.structs.replace(node.order, nodes=names)
    node.report(leaving=True)
    successor.wait(LISTEN_S)
    assert successor.roster.stopping is None
    successor.report_agent(nodes=names, total=4, target=2)
    node.report(leaving=True)
    assert successor.roster.stopping is None
    successor.report_agent(nodes=names, total=4, target=2, leaving=True)
    assert successor.roster.stopping is not None


def test_orders_name_a_node_that_the_term_does_not_hear_until_it_counts_as_lost(two_nodes) -> None:
    stage, _ = two_nodes
    known = (NodeAddress(""), NodeAddress("b", "10.0.0.2", 7001))
    successor = stage.start_successor(wait=False, agent=False)
    named = set()
    for _ in range(2 * int(LIMITS.limit_s) + 4):
        successor.now += 0.5
        for worker in (0, 1):
            successor.report_worker(worker)
        successor.report_agent(target=2, total=4, nodes=known)
        named.add(list_node_addresses(successor.roster)[1:])
    # A still later coordinator would otherwise not know which node it misses.
    assert successor.list_kinds("node.lost") == ["node.lost"]
    assert named == {known[1:], ()}


def test_a_new_coordinator_uses_no_number_of_a_lost_node_again(two_nodes) -> None:
    stage, _ = two_nodes
    let_other_nodes_be_lost(stage)
    stage.adopt()
    successor = stage.start_successor()
    OtherNode(successor, "c", slots=1).join()
    assert successor.list_kinds("worker.started")
    assert set(successor.roster.started) == {0, 1, 200}


def test_the_limits_of_a_run_hold_on_many_nodes(training) -> None:
    stage = training(2)
    OtherNode(stage, "b", slots=100).join()
    assert stage.roster.wanted.target == min(stage.roster.spec.max_workers, PINNED.virtual_ranks)


@pytest.mark.parametrize(
    ("total", "slots", "expected"),
    [
        (4, {"": None, "b": 2}, {"": 2, "b": 2}),
        (6, {"": None, "b": 3, "c": 1}, {"": 2, "b": 3, "c": 1}),
        (6, {"": 2, "b": 2}, {"": 2, "b": 2}),
        (0, {"": None, "b": 2}, {"": 0, "b": 0}),
    ],
)
def test_workers_go_to_free_slots_first(total, slots, expected) -> None:
    loads = {name: NodeLoad(most, frozenset()) for name, most in slots.items()}
    assert deal_target(total, loads) == expected


@given(
    st.integers(0, 12),
    st.dictionaries(
        st.sampled_from(["", "b", "c"]),
        st.tuples(st.one_of(st.none(), st.integers(0, 5)), st.sets(st.integers(0, 9))),
    ),
)
def test_dealt_workers_add_up_and_stay_where_they_are(total, nodes) -> None:
    taken: set[int] = set()
    loads = {}
    for name, (slots, workers) in nodes.items():
        loads[name] = NodeLoad(slots, frozenset(workers - taken))
        taken |= workers
    dealt = deal_target(total, loads)
    assert dealt.keys() == loads.keys()
    assert sum(dealt.values()) <= total
    room = all(load.slots is not None and dealt[name] >= load.slots for name, load in loads.items())
    assert sum(dealt.values()) == total or room
    if total >= len(taken):
        assert all(dealt[name] >= len(load.workers) for name, load in loads.items())


def test_a_node_gets_more_numbers_before_they_run_out() -> None:
    def grant(numbers_end: int, *numbers: tuple[int, int], granted=()) -> Nodes:
        report = AgentReport(pid=1, target=1, term=1, node="b", joins=True, numbers=numbers)
        return grant_numbers(Nodes({"b": report}, granted=dict(granted), numbers_end=numbers_end), "b")

    assert grant(200, (60, 100)).granted == {}
    assert grant(200, (95, 100)).granted == {"b": (200, 300)}
    assert grant(201, (95, 100)).granted == {"b": (300, 400)}
    pending = {"b": (200, 300)}
    assert grant(300, (95, 100), granted=pending).granted == pending
    assert grant(300, (95, 100), (200, 300), granted=pending).granted == {}


def test_two_nodes_that_join_at_once_get_different_numbers(training) -> None:
    stage = training(2)
    nodes = [OtherNode(stage, name, slots=1) for name in "bc"]
    for node in (*nodes, *nodes):
        node.report()
    assert [node.numbers for node in nodes] == [((100, 200),), ((200, 300),)]


def test_an_attempt_may_begin_on_a_machine_with_a_name(open_stage) -> None:
    stage = open_stage()
    first, other = OtherNode(stage, "b", slots=1), OtherNode(stage, "c", slots=1)
    first.numbers, first.order = ((7, 107),), SetTarget(target=1)
    other.report()
    assert stage.roster.wanted.target is None
    first.report(joins=False)
    other.report()
    assert stage.roster.wanted.target == 2
    assert other.numbers == ((200, 300),)


def test_no_numbers_are_granted_before_those_of_the_first_node_are_known(open_stage) -> None:
    stage = open_stage(start=2)
    node = OtherNode(stage, "b", slots=1)
    node.report()
    assert node.numbers == ()
    stage.report_agent(total=0, nodes=(), numbers=((0, 100),))
    node.report()
    assert node.numbers == ((100, 200),)


def test_members_know_their_node_and_first_generation(two_nodes) -> None:
    stage, _ = two_nodes
    assert [member.node for member in stage.newest.members] == ["", "", "b", "b"]
    first, joined = stage.newest.members[0].since, stage.newest.members[2].since
    assert 0 < first < joined <= stage.newest.number


def test_a_worker_that_joins_on_the_first_node_comes_before_the_other_node(two_nodes) -> None:
    stage, _ = two_nodes
    stage.ask(AskResize(workers=5))
    stage.start(2)
    assert stage.newest.workers == (0, 1, 2, 100, 101)
    # Its older neighbours die: now the other node has been in the run longest.
    stage.adopt()
    stage.end_worker(0)
    stage.adopt()
    stage.end_worker(1)
    assert stage.newest.workers == (100, 101, 2)


@given(st.lists(st.tuples(st.sampled_from(["", "b", "c"]), st.integers(0, 5)), min_size=1, max_size=8))
def test_members_are_in_order_of_nodes_and_age(drawn) -> None:
    members = tuple(Member(i, "", 0, 1.0, node, since) for i, (node, since) in enumerate(drawn))
    ordered = order_members(members, 7)
    assert {member.worker for member in ordered} == set(range(len(drawn)))
    nodes = [member.node for member in ordered]
    blocks = list(dict.fromkeys(nodes))
    assert nodes == sorted(nodes, key=blocks.index)
    ages = {node: [member.since for member in ordered if member.node == node] for node in blocks}
    assert all(some == sorted(some) for some in ages.values())
    assert [some[0] for some in ages.values()] == sorted(some[0] for some in ages.values())
    assert order_members(ordered, 8) == ordered


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_on_one_node_members_keep_their_order(joins) -> None:
    settled = [Member(i, "", 0, since=1) for i, joining in enumerate(joins) if not joining]
    joiners = [Member(i, "", 0) for i, joining in enumerate(joins) if joining]
    ordered = order_members([*settled, *joiners], 2)
    assert [member.worker for member in ordered] == [member.worker for member in (*settled, *joiners)]


def test_a_drained_node_is_ordered_to_leave_until_it_says_so(two_nodes) -> None:
    stage, node = two_nodes
    assert stage.ask(AskDrainNode(node="b")).ok
    stage.actions.clear()
    node.report()
    assert node.order.leave
    node.report(leaving=True)
    assert stage.newest.workers == (0, 1)
    assert list_targets(stage)["b"] == 0


def test_the_last_machine_that_stays_cannot_be_drained(two_nodes) -> None:
    stage, _ = two_nodes
    assert stage.ask(AskDrainNode(node="c")).why == "no machine c in this run; taking part: first, b"
    assert stage.ask(AskDrainNode(node="")).ok
    assert "no other machine stays" in stage.ask(AskDrainNode(node="b")).why


def test_a_drained_node_is_ordered_to_leave_by_the_next_coordinator_too(two_nodes) -> None:
    stage, node = two_nodes
    assert stage.ask(AskDrainNode(node="b")).ok
    # It dies before its order has gone out.
    node.stage = successor = stage.start_successor(wait=False, agent=False)
    successor.report_agent(nodes=(NodeAddress(""), NodeAddress("b")), total=4, target=2)
    node.report()
    for worker in (0, 1, 100, 101):
        successor.report_worker(worker)
    successor.wait(2)
    node.report()
    assert node.order.leave
    agents = {row.node: row.state for row in successor.ask(AskStatus()).processes if row.role == "agent"}
    assert agents == {"": "running", "b": "leaving"}


def test_a_node_that_has_left_may_come_back(two_nodes) -> None:
    stage, node = two_nodes
    stage.ask(AskDrainNode(node="b"))
    node.report(leaving=True)
    assert summarize_events(stage.written).drained == {"b"}
    node.living = set()
    node.report(leaving=True)
    assert stage.list_kinds("node.left") == ["node.left"]
    assert summarize_events(stage.written).drained == frozenset()


def test_without_slots_elsewhere_drained_workers_train_on_and_the_user_is_informed(two_nodes) -> None:
    stage, node = two_nodes
    assert stage.ask(AskStatus()).note == ""
    # The first machine is a terminal without workers of its own by now.
    stage.end_worker(0)
    stage.end_worker(1)
    stage.report_agent(slots=0, target=0)
    while stage.newest.workers != (100, 101):
        stage.adopt()
    stage.adopt()
    answer = stage.ask(AskDrainNode(node="b"))
    assert answer.ok
    assert "no machine with slots stays" in answer.note
    node.report(leaving=True)
    assert stage.newest.workers == (100, 101)
    assert "no machine with slots stays" in stage.events[-1].why
    other = OtherNode(stage, "c", slots=1)
    other.join()
    assert stage.ask(AskStatus()).note == ""
    while stage.newest.workers != (200,):
        stage.adopt()
