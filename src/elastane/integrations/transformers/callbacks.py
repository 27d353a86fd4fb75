"""The callbacks of a Trainer in a run: those that a run replaces, and those that it refuses."""

from collections.abc import Sequence
from typing import Any

from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from transformers.integrations.integration_utils import get_reporting_integration_callbacks

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
    """Refuse callbacks that act inside a step of the optimizer.

    Raises:
        BadInput: a callback overrides ``on_pre_optimizer_step``.
    """
    for callback in trainer.callback_handler.callbacks:
        if type(callback).on_pre_optimizer_step is not TrainerCallback.on_pre_optimizer_step:
            raise BadInput(
                f"the callback {type(callback).__name__} has on_pre_optimizer_step",
                means="a worker that joins makes its first steps without gradients, so it would be called on "
                "some workers only",
                do="use on_step_end; the norm of the gradient is in the logs as grad_norm",
            )
