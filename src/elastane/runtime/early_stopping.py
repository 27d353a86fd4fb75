"""Early stopping on a figure that all workers have alike."""

import math
from typing import TYPE_CHECKING, Any, Literal

from elastane.api.errors import BadInput

if TYPE_CHECKING:
    from elastane.runtime.session import Run


class EarlyStopping:
    """Ends a run once a figure has not become better for some time; its counters travel in `Run.keep`.

    Feed it with what is the same on every worker: the sums of an evaluation, or ``step.loss``.

    Args:
        run: to be stopped.
        patience: updates in a row without an improvement after which the run stops, at least 1.
        min_delta: by how much a figure must be better than the best to count, at least 0.
        mode: ``"min"``: smaller is better; ``"max"``: larger is.
        name: under which `Run.keep` has it; different ones for several.

    Attributes:
        best: figure so far; None before the first.
        best_step: the step it was reached at.
        waited: updates since.
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
                f"EarlyStopping(patience={patience}, min_delta={min_delta}, mode={mode!r})",
                means="it waits for at least one update, and compares in one of two directions",
                do="pass patience of 1 or more, min_delta of 0 or more, and mode 'min' or 'max'",
            )
        self._run = run
        self._patience, self._min_delta = patience, min_delta
        self._sign = 1.0 if mode == "min" else -1.0
        self._name = name
        self.best: float | None = None
        self.best_step = self.waited = 0
        if name in run.keep:
            raise BadInput(
                f"run.keep has something named {name!r} already",
                means="the counters of both would be mixed up",
                do="give each EarlyStopping a name of its own",
            )
        run.keep[name] = self

    def update(self, figure: float) -> bool:
        """Take in the newest figure, between steps; may call `Run.stop`.

        Returns:
            Whether it is the best so far. One that is not a number never is.
        """
        self._run.keep.must_be_open()
        value = float(figure)
        better = not math.isnan(value) and (
            self.best is None or self._sign * value < self._sign * self.best - self._min_delta
        )
        if better:
            self.best, self.best_step, self.waited = value, self._run.step, 0
            return True
        self.waited += 1
        if self.waited >= self._patience:
            best = "no figure" if self.best is None else f"{self.best:.6g} of step {self.best_step}"
            self._run.stop(f"{self._name}: nothing better than {best} in {self.waited} updates")
        return False

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_step": self.best_step, "waited": self.waited}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.best_step = state_dict["best"], state_dict["best_step"]
        self.waited = state_dict["waited"]
