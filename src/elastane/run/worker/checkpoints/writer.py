"""A worker's work for checkpoints: it copies its part during a step and writes it during the next steps.

Two threads do it: the copier, for which the vote of a round waits, and the part writer, at low priority.
Memory holds one copy. A new copy waits for the part writer (back-pressure) and replaces a part that storage
refuses.
"""

from collections.abc import Callable

from elastane.run.checkpoints.catalog import Catalog
from elastane.run.nouns.checkpoints import Retention
from elastane.run.nouns.control import CheckpointKept, CheckpointPart, PublishCheckpoint
from elastane.run.protocol.actions import TakeSnapshot
from elastane.run.worker.checkpoints.copier import PlainState, StateCopier
from elastane.run.worker.checkpoints.part_records import PartReports
from elastane.run.worker.checkpoints.part_writer import PartWriter
from elastane.run.worker.checkpoints.publisher import CheckpointPublisher
from elastane.run.worker.gangs.seat import LONE_SEAT, Seat
from elastane.run.worker.state.training_state import TrainingState


class CheckpointWriter:
    """Contributes this worker's part to every checkpoint, with a copier, a part writer and a publisher.

    Args:
        resumed: the number of times that the run has been resumed.
        retention: which checkpoints to retain when a newer one exists.
        describe: returns the plain values of the state; called by the thread that handles the round.
        report_copied: called with the number of the request for a snapshot after its copy.
        report_publication: called with the result of a publication.
        report_refusal: called with True when storage refuses a part, with False when it accepts one again.
        report_change: called after a change of `parts`.
        seat: the place of this process in its worker.
    """

    def __init__(
        self,
        worker: int,
        state: TrainingState,
        catalog: Catalog,
        *,
        resumed: int,
        retention: Retention,
        describe: Callable[[], PlainState],
        report_copied: Callable[[int], None],
        report_publication: Callable[[CheckpointKept], None],
        report_change: Callable[[], None],
        report_refusal: Callable[[bool], None] = lambda _refused: None,
        seat: Seat = LONE_SEAT,
    ) -> None:
        self._reports = PartReports(report_change)
        self._publisher = CheckpointPublisher(
            worker,
            state,
            catalog,
            resumed=resumed,
            retention=retention,
            measure_age_s=self._reports.measure_age_s,
            report=report_publication,
            processes=seat.processes,
        )
        self._part_writer = PartWriter(
            worker,
            catalog,
            self._reports,
            publish=self._publisher.publish,
            report_refusal=report_refusal,
            process=seat.number,
        )
        self._copier = StateCopier(
            worker,
            state,
            self._part_writer,
            self._reports,
            resumed=resumed,
            describe=describe,
            report_copied=report_copied,
            process=seat.number,
        )

    @property
    def parts(self) -> tuple[CheckpointPart, ...]:
        """The reports of this worker's parts of the last few checkpoints, oldest first."""
        return self._reports.parts

    def prepare(self, share: float, then: Callable[[], None]) -> None:
        """Reserve memory for a copy; see `StateCopier.prepare`."""
        self._copier.prepare(share, then)

    def copy_snapshot(self, snapshot: TakeSnapshot) -> None:
        """Copy the blocks of a snapshot; see `StateCopier.copy_snapshot`."""
        self._copier.copy_snapshot(snapshot)

    def refuse(self, snapshot: TakeSnapshot, why: str) -> None:
        """Report that this worker cannot contribute its part to a checkpoint of the settled state."""
        self._copier.refuse(snapshot, why)

    def commit(self) -> None:
        """Write the last copy: its round has committed."""
        self._copier.commit()

    def publish(self, order: PublishCheckpoint) -> None:
        """Publish a checkpoint; all its parts are written."""
        self._part_writer.publish(order)
