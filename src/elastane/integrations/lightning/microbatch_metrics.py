"""The values that ``self.log`` receives inside a training step: the step gets their mean over its samples."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from elastane.common.errors import BadInput
from elastane.common.safe_text import escape_line
from elastane.integrations.lightning.value_names import clean_name
from elastane.run.worker.session import Run

TRAINING_STEP = "training_step"
LogOptions = tuple[str, bool, bool, bool, bool]
"""The name as the module gave it, and ``prog_bar``, ``logger``, ``on_step`` and ``on_epoch``."""


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
