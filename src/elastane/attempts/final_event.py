"""What is written down of a run whose coordinator could not do so any more."""

import time

import msgspec

from elastane.api.control import RunOver
from elastane.api.exit_codes import ExitCode
from elastane.api.records import EventLine
from elastane.api.rundir import RunDir
from elastane.observability.facts import OUTCOMES
from elastane.observability.run_files import decode_event_line, read_lines

KINDS: dict[int, str] = {ExitCode.OK: "run.finished", ExitCode.STOPPED_BY_USER: "run.stopped"}


def write_final_event(run_dir: RunDir, over: RunOver) -> None:
    """Cut off torn lines, and add how the run ended if nobody has.

    Only for whoever holds the run's lock once every other process of the run is gone: a second Ctrl-C kills
    the coordinator in the middle of whatever it was writing.
    """
    for path in (run_dir.ledger, run_dir.events):
        if path.exists():
            with path.open("r+b") as file:
                file.truncate(file.read().rfind(b"\n") + 1)
    events = read_lines(run_dir.events, decode_event_line, torn_tail=False)
    last_attempt = max((i for i, event in enumerate(events) if event.kind == "run.resumed"), default=0)
    if any(event.kind in OUTCOMES for event in events[last_attempt:]):
        return
    event = EventLine(time=time.time(), kind=KINDS.get(over.code, "run.failed"), who="agent", why=over.why)
    with run_dir.events.open("ab") as file:
        file.write(msgspec.json.encode(event) + b"\n")
