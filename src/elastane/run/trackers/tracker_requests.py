"""The trackers of a run: those of its spec, and those that its script requests through ``elastane.join``."""

from elastane.common.errors import BadInput
from elastane.common.untrusted_data import Malformed
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.trackers import Tracker, parse_trackers
from elastane.run.observability.run_files import decode_event_line
from elastane.run.observability.tail import Tail

KIND = "trackers.requested"
"""The kind of the event with which workers ask for trackers; its ``why`` has their names."""
MARK = f'"kind":"{KIND}"'.encode()


class TrackerRequests:
    """Follows the events of a run for trackers that its script asks for."""

    def __init__(self, run_dir: RunDir, chosen: tuple[Tracker, ...]) -> None:
        self._tail = Tail(run_dir.files, run_dir.events)
        self._names = set(chosen)

    def read(self) -> set[Tracker]:
        """Return all trackers so far.

        Raises:
            BadInput: the path of the events does not lead to a regular file.
            OSError: they cannot be read.
        """
        for line in self._tail.read_new_lines():
            if MARK in line:
                self._names |= _decode_request(line)
        return self._names


def _decode_request(line: bytes) -> set[Tracker]:
    try:
        event = decode_event_line(line)
        return set(parse_trackers(event.why, KIND)) if event.kind == KIND else set()
    except (Malformed, BadInput):
        return set()
