"""The checkpoint with which an attempt of the run begins."""

import time
from collections.abc import Callable

import msgspec

from elastane.run.checkpoints.catalog import Catalog
from elastane.run.protocol.messages import BEGINNING, RoundOutcome
from elastane.run.worker.checkpoints.reader import CheckpointReader
from elastane.run.worker.checkpoints.state_reader import StateReader
from elastane.run.worker.state.training_state import TrainingState


class StartingCheckpoint:
    """The checkpoint at the start; it loads the manifest first, and the state with the first generation.

    Args:
        state: the training state to restore.
        report_restored: called with the bytes and the seconds of the restore.

    Attributes:
        outcome: the checkpoint as the outcome of round 0.
        ending: why the script ended the run at this checkpoint; empty if training goes on.

    Raises:
        StorageError: the manifest cannot be read.
    """

    def __init__(
        self, catalog: Catalog, name: str, state: TrainingState, report_restored: Callable[[int, float], None]
    ) -> None:
        self._catalog, self._state, self._report_restored = catalog, state, report_restored
        self._manifest = catalog.load_manifest(name)
        self.outcome: RoundOutcome = msgspec.structs.replace(
            BEGINNING,
            step=self._manifest.step,
            cursors={int(rank): text for rank, text in self._manifest.plain.get("cursors", {}).items()},
        )
        self.ending: str = self._manifest.plain.get("ending", "")

    def restore(self, values: tuple[int, ...], states: tuple[int, ...]) -> None:
        """Restore units in place; see `StateReader.restore`."""
        start_s = time.perf_counter()
        with CheckpointReader(self._catalog.storage, self._manifest) as reader:
            nbytes = StateReader(reader, self._manifest).restore(self._state, values, states)
        self._report_restored(nbytes, time.perf_counter() - start_s)
