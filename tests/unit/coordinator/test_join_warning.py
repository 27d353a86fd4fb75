"""A script that runs without taking part is warned of, once."""

from elastane.api.control import AgentReport, ProcessInfo, WorkerReport
from elastane.api.spec import RunSpec
from elastane.coordinator.actions import WriteEvent
from elastane.coordinator.decide import decide_actions
from elastane.coordinator.join_warning import PATIENCE_S
from elastane.coordinator.roster import create_roster

AGENT = AgentReport(
    pid=1,
    target=1,
    term=1,
    workers=(ProcessInfo(role="worker", pid=10, worker=0, state="starting"),),
)
JOINED = WorkerReport(worker=0, pid=10, host="127.0.0.1", port=1, state="starting")


def warnings_of(*moments):
    """The warnings after ``(time, events)``, one after the other."""
    roster = create_roster(RunSpec(name="run", script="/home/me/train.py"), 1, 0.0)
    found = []
    for now, events in moments:
        roster, actions = decide_actions(roster, events, now)
        found += [a.event for a in actions if isinstance(a, WriteEvent) and a.event.kind == "warning"]
    return found


def test_a_script_that_does_not_join_is_warned_of_once_and_by_name():
    (warning,) = warnings_of((0.0, [AGENT]), (PATIENCE_S + 1, []), (PATIENCE_S + 2, []), (100.0, [AGENT]))
    assert "train.py" in warning.why
    assert "elastane.join()" in warning.why
    assert "/home/me" not in warning.why


def test_nothing_is_said_while_it_may_still_be_importing():
    assert warnings_of((0.0, [AGENT]), (PATIENCE_S - 1, [])) == []


def test_nothing_is_said_of_a_script_that_has_joined():
    assert warnings_of((0.0, [AGENT]), (1.0, [JOINED]), (100.0, [])) == []


def test_a_later_coordinator_does_not_repeat_it():
    (warning,) = warnings_of((0.0, [AGENT]), (PATIENCE_S + 1, []))
    spec = RunSpec(name="run", script="train.py")
    roster = create_roster(spec, 2, 0.0, events=(warning,))
    for now in (0.0, 2.0, 50.0):
        roster, actions = decide_actions(roster, [AGENT], now)
        assert not [a for a in actions if isinstance(a, WriteEvent) and a.event.kind == "warning"]
