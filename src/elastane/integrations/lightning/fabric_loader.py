"""The training loader of a Fabric script: one iteration for each microbatch that this worker computes."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from torch.utils.data import DataLoader

from elastane.common.errors import BadInput
from elastane.integrations.lightning.fabric_schedules import FabricSchedules
from elastane.integrations.lightning.training_data import TrainingData, read_training_loader
from elastane.integrations.lightning.training_run import TrainingRun
from elastane.run.worker.session import Run
from elastane.run.worker.state.run_keep import RunKeep
from elastane.run.worker.step import TrainingStep


class MicrobatchLoader:
    """Iterates over the microbatches of an epoch; a step ends when the script asks for the batch after it.

    Each pass over the loader is an epoch of the run. A process that takes part later, because it joins or the
    run resumes, makes the earlier passes without a batch.

    Args:
        open_steps: prepares the run, and opens its steps, before the first pass.

    Attributes:
        passes: the number of passes that the script has begun.
        stepped: the script has called ``optimizer.step()`` for the microbatch.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        training: TrainingRun,
        open_steps: Callable[[TrainingData], None],
        schedules: FabricSchedules,
    ) -> None:
        self.data = read_training_loader(loader)
        self.dataset, self.batch_size = loader.dataset, loader.batch_size
        self._training, self._open, self._schedules = training, open_steps, schedules
        self._pending: TrainingStep | None = None
        self._opened = False
        self.passes = 0
        self.stepped = False

    def __len__(self) -> int:
        """Return the number of steps in an epoch."""
        return self.data.batches

    def __iter__(self) -> Iterator[Any]:
        epoch, self.passes = self.passes, self.passes + 1
        step = self._look_ahead()
        if step is None or step.epoch > epoch:
            return
        self._pending = None
        while step is not None:
            yield from self._iterate_step(step)
            if self._training.cut_short:
                self._training.take()
                # The script's own loops would go on with epochs that another attempt makes.
                raise SystemExit(0)
            if step.ended_epoch:
                return
            step = self._training.take()

    def find_epoch(self) -> int:
        """Return the epoch of the next step, from 0."""
        step = self._look_ahead()
        return self.passes if step is None else step.epoch

    @property
    def catching_up(self) -> bool:
        """The script is in an epoch that the run has made before."""
        return self._pending is not None and self._pending.epoch > self.passes - 1

    def _look_ahead(self) -> TrainingStep | None:
        if not self._opened:
            self._opened = True
            self._open(self.data)
        if self._pending is None:
            self._pending = self._training.take()
        return self._pending

    def _iterate_step(self, step: TrainingStep) -> Iterator[Any]:
        training = self._training
        for batch in step:
            training.computing, self.stepped = True, False
            yield batch
            training.computing = False
            if not self.stepped:
                raise BadInput(
                    "a batch had no optimizer.step()",
                    means="the loader yields the microbatches of a step, and the step ends after the last; a "
                    "script that counts its batches to accumulate would count others on each worker",
                    do="call fabric.backward(loss) and optimizer.step() for each batch; for a larger step "
                    "use a larger batch_size, which microbatch= divides",
                )
            self._schedules.end_microbatch()
        self._schedules.complete_step()


class RecordedRun:
    """Stands in for a run that has the records of the epoch: values, lines and files are not made again."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def keep(self) -> RunKeep:
        return self._run.keep

    @property
    def step(self) -> int:
        return self._run.step

    def log(self, **values: object) -> None:
        """Do nothing."""

    def print(self, *values: object) -> None:
        """Do nothing."""

    def checkpoint(self, **metrics: float) -> None:
        """Do nothing."""

    def stop(self, reason: str) -> None:
        """Do nothing: the run has decided after the epoch."""

    @contextmanager
    def artifact(self, name: str) -> Iterator[Path]:
        """Yield a path of a file that is dropped."""
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder) / name

    def evaluate(self, *_args: object, **_options: object) -> NoReturn:
        """Refuse an evaluation, which the other workers have made already."""
        raise BadInput(
            "run.evaluate was called in an epoch that the run has made before",
            means="a process that joins or resumes makes the earlier epochs of the script without batches",
            do="begin at the epoch of the run: for epoch in fabric.strategy.epochs(20)",
        )
