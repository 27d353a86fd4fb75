"""A machine that leaves a run: whether it is the last one, and when its agent may end."""

import pytest

from elastane.run.machines.agents.node_agent import LONGEST_LEAVE_S, has_left, inherits_end, is_last_machine
from elastane.run.nouns.membership import NodeAddress

HERE, THERE = NodeAddress("b", "10.0.0.2", 1), NodeAddress("", "10.0.0.1", 1)


@pytest.mark.parametrize(
    ("nodes", "begins", "last"),
    [
        ((HERE,), False, True),
        ((THERE, HERE), False, False),
        ((), True, True),
        # Before its first order a machine that has joined knows no other one, but the run has another one.
        ((), False, False),
    ],
)
def test_the_last_machine_stops_the_run_instead_of_leaving(nodes, begins, last):
    assert is_last_machine("b", nodes, begins=begins) is last


@pytest.mark.parametrize(
    ("workers", "recorded", "idle_s", "left"),
    [
        (0, True, 0.0, True),
        (0, False, LONGEST_LEAVE_S, False),
        (0, False, LONGEST_LEAVE_S + 1, True),
        (1, True, LONGEST_LEAVE_S + 1, False),
    ],
)
def test_a_machine_has_left_once_that_is_recorded_or_no_answer_comes(workers, recorded, idle_s, left):
    assert has_left(workers=workers, recorded=recorded, idle_s=idle_s) is left


@pytest.mark.parametrize(
    ("node", "others", "charged", "inherits"),
    [
        # The first machine has left, and its coordinator has served the run to its end.
        ("b", ("b",), "", True),
        ("b", ("c", "b"), "", True),
        ("c", ("c", "b"), "", False),
        # The machine in charge still takes part.
        ("b", ("", "b"), "", False),
        ("b", ("b", "c"), "b", False),
        # It has had no order.
        ("b", (), "", False),
    ],
)
def test_one_machine_writes_the_results_if_the_one_in_charge_has_left(node, others, charged, inherits):
    nodes = tuple(NodeAddress(name, "10.0.0.1", 1) for name in others)
    assert inherits_end(node, nodes, charged) is inherits
