"""The state of a Trainer outside the model, which a joining worker receives and a checkpoint holds."""

import json
from typing import Any

from transformers.trainer_callback import ExportableState

STATE_FIELDS = (
    "epoch",
    "global_step",
    "num_input_tokens_seen",
    "total_flos",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
)
"""Fields of the TrainerState that change in a training and are the same on every worker."""
CONTROL_FIELDS = ("should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log")
LOOP_FIELDS = ("current_flos", "_total_loss_scalar", "_globalstep_last_logged", "divides_loss")


def describe_progress(trainer: Any) -> str:
    """Return the state of a Trainer as JSON text; equal on all workers after the same step."""
    return json.dumps(
        {
            "state": {name: _to_plain(getattr(trainer.state, name)) for name in STATE_FIELDS},
            "control": {name: getattr(trainer.control, name) for name in CONTROL_FIELDS},
            "loop": {name: getattr(trainer, name) for name in LOOP_FIELDS},
            "loss": trainer._tr_loss.item(),
            "callbacks": [callback.state() for callback in list_stateful_callbacks(trainer)],
            "values": trainer.values.export(),
        },
        sort_keys=True,
    )


def restore_progress(trainer: Any, text: str) -> None:
    """Restore the result of `describe_progress` on another worker or in another attempt of the run."""
    known = json.loads(text)
    for name, value in known["state"].items():
        setattr(trainer.state, name, value)
    for name, value in known["control"].items():
        setattr(trainer.control, name, value)
    for name, value in known["loop"].items():
        # Before the first step no worker knows yet whether the loss is divided.
        if value is not None:
            setattr(trainer, name, value)
    trainer._tr_loss.fill_(known["loss"])
    for callback, state in zip(list_stateful_callbacks(trainer), known["callbacks"], strict=True):
        for name, value in state.get("attributes", {}).items():
            setattr(callback, name, value)
    trainer.values.restore(known["values"])


def list_stateful_callbacks(trainer: Any) -> list[Any]:
    """Return the callbacks with a state that a Trainer saves, without its control."""
    return [each for each in trainer.callback_handler.callbacks if isinstance(each, ExportableState)]


def export_callback_states(trainer: Any) -> None:
    """Write the states of callbacks and control into the TrainerState, as a Trainer's checkpoint does."""
    states: dict[str, Any] = {}
    for callback in (*list_stateful_callbacks(trainer), trainer.control):
        name = type(callback).__name__
        if name in states:
            first = states[name]
            states[name] = [*(first if isinstance(first, list) else [first]), callback.state()]
        else:
            states[name] = callback.state()
    trainer.state.stateful_callbacks = states


def _to_plain(value: object) -> object:
    """Return a number of NumPy as a plain one."""
    return value.item() if hasattr(value, "item") else value
