"""The values that a module logs: the mean of those inside a step, and the logger that records the others."""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric.loggers.logger import _DummyExperiment
from lightning.pytorch.loggers.logger import Logger

from elastane.common.errors import BadInput
from elastane.common.safe_text import escape_line
from elastane.run.worker.session import Run
from elastane.run.worker.values import LONGEST_NAME

if TYPE_CHECKING:
    from elastane.integrations.lightning.training_run import TrainingRun

TRAINING_STEP = "training_step"
LogOptions = tuple[str, bool, bool, bool, bool]
"""The name as the module gave it, and ``prog_bar``, ``logger``, ``on_step`` and ``on_epoch``."""
NOT_RECORDED = frozenset({"epoch", "step"})
"""Names that Lightning adds; each line of the ledger has both."""


class MicrobatchMetrics:
    """Stands in for Lightning's results while microbatches are computed, which differ on each worker.

    Args:
        run: records the values.

    Attributes:
        options: the arguments of ``self.log`` for each recorded name, as far as this worker has seen them.
        known: the options of all names that a step of the run had; the same on every worker.
    """

    # Lightning reads and sets them.
    batch: Any = None
    batch_size: int | None = None
    dataloader_idx: int | None = None

    def __init__(self, run: Run) -> None:
        self._run = run
        self.options: dict[str, LogOptions] = {}
        self.known: dict[str, LogOptions] = {}
        self._microbatches: list[set[str]] = []

    def __bool__(self) -> bool:
        """Return False: there are no metrics to read before the step is complete."""
        return False

    def reset(self, *_args: object, **_options: object) -> None:
        """Do nothing: a microbatch has no earlier values."""

    def begin_step(self) -> None:
        self._microbatches.clear()

    def begin_microbatch(self) -> None:
        self._microbatches.append(set())

    def log(
        self,
        fx: str,
        name: str,
        value: object,
        *,
        prog_bar: bool = False,
        logger: bool = True,
        on_step: bool = False,
        on_epoch: bool = True,
        reduce_fx: str | Callable[..., Any] = "mean",
        **_rest: object,
    ) -> None:
        """Record a value of the current microbatch.

        Raises:
            BadInput: the value is not one that has a mean over samples, or its name cannot be used.
        """
        if fx != TRAINING_STEP:
            raise BadInput(
                f"self.log({escape_line(name, 40)!r}, ...) was called in {fx}, inside a step",
                means="inside a step, each worker computes other microbatches",
                do="log in training_step, or in a hook that runs between two steps",
            )
        _check_mean(name, value, reduce_fx, on_epoch=on_epoch)
        key = clean_name(name)
        options = (name, prog_bar, logger, on_step, on_epoch)
        if self.options.setdefault(key, options) != options:
            raise BadInput(
                f"self.log was called for {escape_line(name, 40)!r} with other arguments before, or for "
                f"{escape_line(self.options[key][0], 40)!r}",
                means=f"the run records one value with the name {key} per step",
                do="use the same arguments each time, and names that differ in letters or digits",
            )
        self._microbatches[-1].add(key)
        self._run.log(**{key: value})  # type: ignore[arg-type]

    def find_unknown(self, means: Mapping[str, float]) -> str | None:
        """Return a name of the step that some microbatches, and so some workers, have never seen."""
        new = [name for name in means if name not in self.known]
        return next(
            (n for n in new if n not in self.options or any(n not in names for names in self._microbatches)),
            None,
        )

    def complete_step(self, means: Mapping[str, float]) -> dict[str, LogOptions]:
        """Return the options of each value of the step, the same on every worker.

        Raises:
            BadInput: the first step with a name did not have it in every microbatch.
        """
        if (name := self.find_unknown(means)) is not None:
            raise BadInput(
                f"training_step logged {name} for some microbatches of the step only",
                means="workers that have not computed these do not know how to show it",
                do="log it in every microbatch, such as self.log(name, value if known else 0.0)",
            )
        found = {name: self.known.get(name) or self.options[name] for name in means}
        self.known |= found
        self.options |= found
        return found


def _check_mean(name: str, value: object, reduce_fx: object, *, on_epoch: bool) -> None:
    shown = escape_line(name, 40)
    if not isinstance(value, torch.Tensor | float | int):
        raise BadInput(
            f"self.log({shown!r}, ...) was given a {type(value).__name__} in training_step",
            means="its state would count the microbatches of one worker only",
            do="log a number: the run takes the mean over all samples of the step; use metrics in validation",
        )
    if on_epoch and reduce_fx not in ("mean", "avg", torch.mean):
        kind = getattr(reduce_fx, "__name__", reduce_fx)
        raise BadInput(
            f"self.log({shown!r}, reduce_fx={kind}, ...) was called in training_step",
            means="a step has the mean over its samples of each value, for any number of microbatches",
            do="log a mean, or compute the value in validation_step",
        )


def clean_name(name: str) -> str:
    """Return an identifier for a name such as ``train/loss``, which a run can record.

    Two names may become one; `MicrobatchMetrics` refuses that.
    """
    cleaned = re.sub(r"\W", "_", name, flags=re.ASCII)[:LONGEST_NAME]
    return cleaned if cleaned.isidentifier() else f"_{cleaned}"[:LONGEST_NAME]


class RunLogger(Logger):
    """Records metrics through `Run.log`, between two steps.

    A logger of Lightning would write from every worker, and those of a dead worker would be missing.
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
