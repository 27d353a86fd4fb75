"""The record of a worker's part of a checkpoint, and its report to the coordinator."""

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from elastane.run.nouns.checkpoints import PartFile
from elastane.run.nouns.control import CheckpointPart

REMEMBERED_PARTS = 8
"""How many parts a worker may write before the first is published, while the coordinator is down."""


class PartRecord(msgspec.Struct, frozen=True):
    """The facts about a part that the publisher needs; a file beside the part until publication.

    Args:
        part: the description of the file.
        scalars: the plain values of optimizer state, for the parameters that begin in this part.
        plain: the other plain values of the state; the same in every part.
        metrics: the metrics of the checkpoint; the same in every part.
    """

    part: PartFile
    scalars: dict[str, dict[str, Any]]
    plain: dict[str, Any]
    metrics: dict[str, float]


def name_record(worker: int, process: int = 0) -> str:
    """Return the name of the file with the `PartRecord` of a worker, or of one of its further processes."""
    return f"part-{worker}.{process}.json" if process else f"part-{worker}.json"


# -- the progress of a worker's parts of checkpoints, as it reports it to the coordinator ----------------


class PartReports:
    """The progress of this worker's parts of the last few checkpoints.

    Args:
        report_change: called after a change of `parts`.

    Attributes:
        parts: the reports, oldest first.
    """

    def __init__(self, report_change: Callable[[], None]) -> None:
        self._report_change = report_change
        self._lock = threading.Lock()
        self.parts: tuple[CheckpointPart, ...] = ()

    def report(self, part: CheckpointPart) -> None:
        """Add a report, or replace the report of the same checkpoint; not that of a later attempt."""
        with self._lock:
            if any(known.name == part.name and known.attempt > part.attempt for known in self.parts):
                return
            others = [other for other in self.parts if other.name != part.name]
            self.parts = (*others, part)[-REMEMBERED_PARTS:]
        self._report_change()

    def measure_age_s(self, checkpoint: str) -> float:
        """Return the time since this worker began to copy its part of a checkpoint; 0 if it has no part."""
        began = (part.began_s for part in self.parts if part.name == checkpoint)
        return next((time.monotonic() - began_s for began_s in began), 0.0)
