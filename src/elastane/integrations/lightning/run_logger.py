"""The logger that gives the metrics of a Trainer to the run, which records each once per step."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightning.fabric.loggers.logger import _DummyExperiment
from lightning.pytorch.loggers.logger import Logger

from elastane.integrations.lightning.value_names import clean_name

if TYPE_CHECKING:
    from elastane.integrations.lightning.training_run import TrainingRun

NOT_RECORDED = frozenset({"epoch", "step"})
"""Names that Lightning adds; each line of the ledger has both."""


class RunLogger(Logger):
    """Records metrics through `Run.log`, between two steps.

    A logger of Lightning would write from every worker, and those of a dead worker would be missing.

    Args:
        training: the training of the strategy.
    """

    def __init__(self, training: "TrainingRun") -> None:
        super().__init__()
        self._training = training

    @property
    def name(self) -> str:
        return "elastane"

    @property
    def version(self) -> str:
        return "run"

    @property
    def experiment(self) -> _DummyExperiment:
        """An object that accepts every call of a logger's experiment and does nothing."""
        return _DummyExperiment()

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Record metrics of the step just made; outside a run's steps they are not recorded."""
        self._training.record(
            {clean_name(name): value for name, value in metrics.items() if name not in NOT_RECORDED}
        )

    def log_hyperparams(self, *_args: Any, **_options: Any) -> None:
        """Do nothing: the run records the script and its arguments."""
