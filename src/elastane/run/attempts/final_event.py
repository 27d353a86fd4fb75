"""The last event of a run, for a coordinator that was killed before it could write it."""

import time

import msgspec

from elastane.run.nouns.control import RunOver
from elastane.run.nouns.records import AGENT, OUTCOMES, EventLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.facts import find_outcome_event
from elastane.run.observability.line_files import append_line, remove_torn_line
from elastane.run.observability.run_files import read_events

KINDS: dict[int, str] = {code: kind for kind, code in OUTCOMES.items()}


def write_final_event(run_dir: RunDir, over: RunOver) -> None:
    """Cut off torn lines, and add the event that ends the run if there is none.

    The caller holds the run's lock, and every other process of the run has ended. A second Ctrl-C may have
    killed the coordinator in the middle of a line.
    """
    remove_torn_line(run_dir.ledger)
    remove_torn_line(run_dir.events)
    if find_outcome_event(read_events(run_dir, torn_tail=False)) is not None:
        return
    event = EventLine(time=time.time(), kind=KINDS.get(over.code, "run.failed"), who=AGENT, why=over.why)
    append_line(run_dir.events, msgspec.json.encode(event))
