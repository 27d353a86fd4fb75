"""Early stopping by a metric that is the same on all workers."""

import math
from typing import TYPE_CHECKING, Any, Literal

from elastane.common.errors import BadInput

if TYPE_CHECKING:
    from elastane.run.worker.session import Run


class EarlyStopping:
    """Stops a run when a metric has not improved for some time; `Run.keep` has its counters.

    Update it with a metric that is the same on every worker: a sum of an evaluation, or ``step.loss``.

    Args:
        run: the run to stop.
        patience: the run stops after this many updates in a row without an improvement; at least 1.
        min_delta: a metric is an improvement if it is better than the best by more than this; at least 0.
        mode: ``"min"``: smaller is better; ``"max"``: larger is better.
        name: the name in `Run.keep`; each `EarlyStopping` of a run has its own.

    Attributes:
        best: the best metric so far; None before the first one.
        best_step: the step of the best metric.
        waited: the number of updates since the best metric.

    Raises:
        BadInput: an argument is invalid, or `Run.keep` has the name already.
    """

    def __init__(
        self,
        run: "Run",
        *,
        patience: int,
        min_delta: float = 0.0,
        mode: Literal["min", "max"] = "min",
        name: str = "early stopping",
    ) -> None:
        if patience < 1 or not min_delta >= 0 or mode not in ("min", "max"):
            raise BadInput(
                f"EarlyStopping was given patience={patience}, min_delta={min_delta}, mode={mode!r}",
                means="patience must be 1 or more, min_delta 0 or more, and mode 'min' or 'max'",
                do="correct the invalid argument",
            )
        self._run = run
        self._patience, self._min_delta = patience, min_delta
        self._sign = 1.0 if mode == "min" else -1.0
        self._name = name
        self.best: float | None = None
        self.best_step = self.waited = 0
        if name in run.keep:
            raise BadInput(
                f"run.keep already has the name {name!r}",
                means="an EarlyStopping keeps its counters in run.keep, under its name",
                do="give this EarlyStopping another name: EarlyStopping(run, ..., name=...)",
            )
        run.keep[name] = self

    def update(self, metric: float) -> bool:
        """Take the newest metric, between two steps; call `Run.stop` after too many without an improvement.

        The loop over the steps then ends by itself; the script does not leave it.

        Returns:
            True: the metric is the best so far, so this is the moment to save a model. False: it is not, as
            NaN never is. It does not say whether the run stops.

        Raises:
            BadInput: a step is running.
        """
        self._run.keep.check_unlocked()
        value = float(metric)
        better = not math.isnan(value) and (
            self.best is None or self._sign * value < self._sign * self.best - self._min_delta
        )
        if better:
            self.best, self.best_step, self.waited = value, self._run.step, 0
            return True
        self.waited += 1
        if self.waited >= self._patience:
            best = "no metric" if self.best is None else f"{self.best:.6g} of step {self.best_step}"
            self._run.stop(f"{self._name}: nothing better than {best} in {self.waited} updates")
        return False

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_step": self.best_step, "waited": self.waited}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.best_step = state_dict["best"], state_dict["best_step"]
        self.waited = state_dict["waited"]
