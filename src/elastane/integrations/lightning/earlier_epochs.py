"""The run as a script sees it while it is in an epoch that the run has made before."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from elastane.common.errors import BadInput
from elastane.run.worker.session import Run
from elastane.run.worker.state.run_keep import RunKeep


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
