"""The callbacks of a Trainer in a run: those that a run replaces, refuses, or warns of."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from transformers.integrations.integration_utils import get_reporting_integration_callbacks
from transformers.trainer_callback import ExportableState

from elastane.common.errors import BadInput
from elastane.run.nouns.trackers import TRACKERS
from elastane.run.worker.session import Run


def remove_reporters(trainer: Any, run: Run) -> None:
    """Remove the callbacks that write to a terminal or a tracker: every worker would write.

    The terminal of ``elastane run`` shows the progress, and the ledger has all logged values once.
    """
    for callback in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(callback)
    for callback in get_reporting_integration_callbacks(trainer.args.report_to):
        trainer.remove_callback(callback)
    if trainer.args.report_to:
        run.print(describe_reporters(trainer.args.report_to))


def describe_reporters(names: Sequence[str]) -> str:
    """Return what the run prints about ``report_to``: only some of its trackers exist for ``--log``."""
    if known := [name for name in names if name in TRACKERS]:
        advice = f"to pass it on, start the run with: elastane run --log {','.join(known)}"
    else:
        advice = f"--log passes it on to {', '.join(TRACKERS)}"
    return (
        f"report_to={','.join(names)}: the workers of a run do not report. The ledger has each value once; "
        f"{advice}"
    )


def check_callbacks(trainer: Any) -> None:
    """Refuse callbacks that act inside a step of the optimizer."""
    for callback in trainer.callback_handler.callbacks:
        if type(callback).on_pre_optimizer_step is not TrainerCallback.on_pre_optimizer_step:
            raise BadInput(
                f"the callback {type(callback).__name__} has on_pre_optimizer_step",
                means="a worker that joins makes its first steps without gradients, so it would be called on "
                "some workers only",
                do="use on_step_end; the norm of the gradient is in the logs as grad_norm",
            )


class CallbackWatch:
    """Finds the callbacks that change attributes which no worker sends to one that joins.

    They cannot be sent as they are: some callbacks count on one worker only, and some keep times, so the
    values may differ between workers. An ``ExportableState`` names the attributes that are equal everywhere.

    Args:
        callbacks: the callbacks of a Trainer, after the event of its beginning.
    """

    def __init__(self, callbacks: list[Any]) -> None:
        watched = [each for each in callbacks if not isinstance(each, ExportableState)]
        self._watched = [(each, describe_attributes(each)) for each in watched]

    def find_changed(self) -> Iterator[tuple[str, str]]:
        """Yield the class of each callback that has changed, once, and the name of a changed attribute."""
        unchanged = []
        for callback, before in self._watched:
            after = describe_attributes(callback)
            changed = sorted(name for name, text in after.items() if before.get(name) != text)
            if changed:
                yield type(callback).__name__, changed[0]
            else:
                unchanged.append((callback, before))
        self._watched = unchanged


def describe_attributes(callback: Any) -> dict[str, str]:
    """Return each attribute as text: a number as its value, a container as its length, others as a type."""
    return {name: _describe(value) for name, value in getattr(callback, "__dict__", {}).items()}


def _describe(value: object) -> str:
    if isinstance(value, bool | int | float | str | None):
        return repr(value)
    kind = type(value).__name__
    return f"{kind} of {len(value)}" if isinstance(value, list | tuple | dict | set | deque) else kind


def build_change_warning(kind: str, attribute: str) -> str:
    """Return the warning about a callback that has changed."""
    return (
        f"the callback {kind} changes its attribute {attribute}, and a worker that joins or resumes begins "
        f"with its first value. To go on from the last one, derive {kind} from TrainerCallback and "
        f"ExportableState (of transformers.trainer_callback), and return {attribute} from its state()"
    )
