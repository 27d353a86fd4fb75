"""The last event of a run, for a coordinator that was killed before it could write it."""

import time

import msgspec

from elastane.api.control import RunOver
from elastane.api.records import OUTCOMES, EventLine
from elastane.api.rundir import RunDir
from elastane.observability.facts import find_outcome_event
from elastane.observability.line_files import cut_torn_line
from elastane.observability.run_files import decode_event_line, read_lines

KINDS: dict[int, str] = {code: kind for kind, code in OUTCOMES.items()}


def write_final_event(run_dir: RunDir, over: RunOver) -> None:
    """Cut off torn lines, and add the event that ends the run if there is none.

    The caller holds the run's lock, and every other process of the run has ended. A second Ctrl-C may have
    killed the coordinator in the middle of a line.
    """
    for path in (run_dir.ledger, run_dir.events):
        if path.exists():
            with path.open("r+b") as file:
                cut_torn_line(file.fileno())
    events = read_lines(run_dir.events, decode_event_line, torn_tail=False)
    if find_outcome_event(events) is not None:
        return
    event = EventLine(time=time.time(), kind=KINDS.get(over.code, "run.failed"), who="agent", why=over.why)
    with run_dir.events.open("ab") as file:
        file.write(msgspec.json.encode(event) + b"\n")
