"""A script that runs and does not join gives one warning."""

import msgspec

from elastane.run.coordinator.actions import WriteEvent
from elastane.run.coordinator.decide import decide_actions
from elastane.run.coordinator.roster import create_roster
from elastane.run.coordinator.warnings import PATIENCE_S
from elastane.run.nouns.control import AgentReport, ProcessInfo, WorkerReport
from elastane.run.nouns.spec import RunSpec

AGENT = AgentReport(
    pid=1,
    target=1,
    term=1,
    workers=(ProcessInfo(role="worker", pid=10, worker=0, state="starting"),),
)
JOINED = WorkerReport(worker=0, pid=10, host="127.0.0.1", port=1, state="starting")


def list_warnings(*inputs):
    """Return the warnings after these ``(time, events)``."""
    roster = create_roster(RunSpec(name="run", script="/home/me/train.py"), 1, 0.0)
    found = []
    for now, events in inputs:
        roster, actions = decide_actions(roster, events, now, now)
        found += [a.event for a in actions if isinstance(a, WriteEvent) and a.event.kind == "warning"]
    return found


def test_a_script_that_does_not_join_gives_one_warning_with_its_name():
    (warning,) = list_warnings((0.0, [AGENT]), (PATIENCE_S + 1, []), (PATIENCE_S + 2, []), (100.0, [AGENT]))
    assert "train.py" in warning.why
    assert "elastane.join()" in warning.why
    assert "/home/me" not in warning.why


def test_there_is_no_warning_while_the_script_imports():
    importing = msgspec.structs.replace(AGENT, importing=True)
    before = (0.0, [AGENT]), (1.0, [importing]), (50.0, []), (50.1, [AGENT])
    assert list_warnings(*before, (50.0 + PATIENCE_S - 1, [])) == []
    assert len(list_warnings(*before, (50.0 + PATIENCE_S + 1, []))) == 1


def test_there_is_no_warning_about_a_script_that_has_joined():
    assert list_warnings((0.0, [AGENT]), (1.0, [JOINED]), (100.0, [])) == []


def test_a_later_coordinator_does_not_repeat_the_warning():
    (warning,) = list_warnings((0.0, [AGENT]), (PATIENCE_S + 1, []))
    spec = RunSpec(name="run", script="train.py")
    roster = create_roster(spec, 2, 0.0, events=(warning,))
    for now in (0.0, 2.0, 50.0):
        roster, actions = decide_actions(roster, [AGENT], now, now)
        assert not [a for a in actions if isinstance(a, WriteEvent) and a.event.kind == "warning"]
