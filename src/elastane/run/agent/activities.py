"""What each worker does: how often the agent saw it in which phase, when it looked at the heartbeat file."""

from collections import Counter, deque

from elastane.run.agent.hang_detection import READ_EVERY_S
from elastane.run.nouns.control import Activity
from elastane.run.nouns.heartbeat_file import Phase

WINDOW_S = 2.0
"""Long enough for some steps of a usual run, short enough for a reader that waits for a change."""

ACTIVITIES: dict[int, Activity] = {
    Phase.STARTING: "start",
    Phase.DATA: "load",
    Phase.COMPUTE: "compute",
    Phase.STEP: "wait",
    Phase.USER: "script",
    Phase.FINISHED: "end",
    Phase.ENDING: "end",
}


class WorkerLooks:
    """The phases of one worker at the last looks of its agent.

    The looks cost a step nothing: a worker writes its phase into shared memory in any case, and the agent
    reads it to find workers that hang.
    """

    def __init__(self) -> None:
        self._phases = deque[int](maxlen=round(WINDOW_S / READ_EVERY_S))

    def add(self, phase: int) -> None:
        """Add a look."""
        self._phases.append(phase)

    def compute_shares(self) -> dict[Activity, int]:
        """Return the share of each activity in percent, the largest first; empty before the first look."""
        # A worker writes its slot itself, so the number may be none of the phases.
        counts = Counter(ACTIVITIES[phase] for phase in self._phases if phase in ACTIVITIES)
        return {name: round(100 * count / counts.total()) for name, count in counts.most_common()}
