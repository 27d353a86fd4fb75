"""The state of a Trainer that a worker which joins receives, and that the run's checkpoints have."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection, _ResultMetric

from elastane.common.errors import BadInput
from elastane.integrations.lightning.checkpoint_files import CheckpointNames
from elastane.integrations.lightning.logged_values import MicrobatchMetrics

SCALAR = "lightning.scalar"
"""The key of a tensor of one element, described by its value, type and shape."""
UNSAVED = (
    "_defer_save_until_validation",
    "_last_global_step_saved",
    "_last_checkpoint_saved",
    "current_score",
)
"""Attributes of a ModelCheckpoint that loading its own state does not set."""
METRICS = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
OPTIONS = ("name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx")
"""The arguments of ``self.log`` that describe a result of an epoch."""


class TrainerState:
    """The counters, metrics and callbacks of a Trainer, as an object for `Run.keep`."""

    def __init__(self, trainer: Any, values: MicrobatchMetrics, files: CheckpointNames) -> None:
        self._trainer, self._values, self._files = trainer, values, files

    def state_dict(self) -> dict[str, Any]:
        epochs = self._trainer.fit_loop.epoch_loop
        connector = self._trainer._logger_connector
        state = {
            "progress": [progress.state_dict() for progress in self._list_progress()],
            "stepped": epochs._batches_that_stepped,
            "first": connector._first_loop_iter,
            "hook": epochs.last_hook,
            "metrics": [list(getattr(connector, name).items()) for name in METRICS],
            "results": describe_results(self._trainer.fit_loop.epoch_loop.own_results),
            "callbacks": [_read_callback(callback) for callback in self._trainer.callbacks],
            "options": [[key, *options] for key, options in self._values.known.items()],
            "files": sorted(self._files.names),
        }
        described: dict[str, Any] = describe_scalars(state)
        return described

    def load_state_dict(self, described: Mapping[str, Any]) -> None:
        """Load the result of `state_dict` of another worker or of an earlier attempt.

        Raises:
            BadInput: the Trainer there had other callbacks.
        """
        state = restore_scalars(described)
        trainer, connector = self._trainer, self._trainer._logger_connector
        for progress, entry in zip(self._list_progress(), state["progress"], strict=True):
            progress.load_state_dict(entry)
        trainer.fit_loop.epoch_loop._batches_that_stepped = state["stepped"]
        connector._first_loop_iter, trainer.fit_loop.epoch_loop.last_hook = state["first"], state["hook"]
        for name, entries in zip(METRICS, state["metrics"], strict=True):
            setattr(connector, name, dict(entries))
        restore_results(trainer.fit_loop.epoch_loop.own_results, state["results"], trainer.strategy.reduce)
        self._values.known = {key: tuple(options) for key, *options in state["options"]}
        self._files.names = set(state["files"])
        if len(state["callbacks"]) != len(trainer.callbacks):
            raise BadInput(
                f"the Trainer has {len(trainer.callbacks)} callbacks, and the run's state has "
                f"{len(state['callbacks'])}",
                means="the state of a callback would be lost",
                do="resume with the script and the callbacks that the run began with",
            )
        for callback, entry in zip(trainer.callbacks, state["callbacks"], strict=True):
            _load_callback(callback, entry)

    def _list_progress(self) -> list[Any]:
        fit = self._trainer.fit_loop
        epochs = fit.epoch_loop
        return [
            fit.epoch_progress,
            epochs.batch_progress,
            epochs.scheduler_progress,
            epochs.automatic_optimization.optim_progress,
            epochs.val_loop.batch_progress,
        ]


def _read_callback(callback: pl.Callback) -> dict[str, Any]:
    extra = UNSAVED if isinstance(callback, ModelCheckpoint) else ()
    return {"state": callback.state_dict(), "extra": {name: getattr(callback, name) for name in extra}}


def _load_callback(callback: pl.Callback, entry: Mapping[str, Any]) -> None:
    if entry["state"]:
        callback.load_state_dict(entry["state"])
    for name, value in entry["extra"].items():
        setattr(callback, name, value)


def describe_scalars(value: Any) -> Any:
    """Return a value with a description in place of each tensor of one element, for JSON."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        number = value.item()
        text = number.hex() if isinstance(number, float) else str(int(number))
        return {SCALAR: [text, str(value.dtype).removeprefix("torch."), list(value.shape)]}
    if isinstance(value, Mapping):
        return {"items": [[key, describe_scalars(entry)] for key, entry in value.items()]}
    if isinstance(value, list | tuple):
        return [describe_scalars(entry) for entry in value]
    return value


def restore_scalars(value: Any) -> Any:
    """Return the value that `describe_scalars` described, with lists in place of tuples."""
    if isinstance(value, Mapping) and SCALAR in value:
        text, dtype, shape = value[SCALAR]
        number = float.fromhex(text) if dtype.startswith(("float", "bfloat")) else int(text)
        return torch.full(tuple(shape), number, dtype=getattr(torch, dtype))
    if isinstance(value, Mapping):
        return {key: restore_scalars(entry) for key, entry in value["items"]}
    if isinstance(value, list | tuple):
        return [restore_scalars(entry) for entry in value]
    return value


def describe_results(results: _ResultCollection) -> list[dict[str, Any]]:
    """Return all results of the epoch.

    Raises:
        BadInput: one of them is a metric with a state of its own.
    """
    return [_describe_result(metric) for metric in results.values()]


def _describe_result(metric: _ResultMetric) -> dict[str, Any]:
    meta = metric.meta
    if not metric.is_tensor:
        raise BadInput(
            f"self.log({meta.name!r}, ...) was given a {type(metric.value).__name__} in {meta.fx}",
            means="a worker that joins in the middle of the epoch would lack its state",
            do="log numbers during training; use metrics in validation_step, which every worker runs whole",
        )
    return {
        "hook": meta.fx,
        "options": [getattr(meta, name) for name in OPTIONS],
        "reduction": meta.reduce_fx.__name__,
        "rank_zero_only": meta.sync.rank_zero_only,
        "value": metric.value,
        "weight": getattr(metric, "cumulated_batch_size", None),
        "last": metric._forward_cache,
        "reset": metric.has_reset,
    }


def restore_results(
    results: _ResultCollection, described: Iterable[dict[str, Any]], reduce: Callable[..., Any]
) -> None:
    """Replace results by those that `describe_results` described; ``reduce`` is that of the strategy."""
    results.clear()
    for entry in described:
        options = dict(zip(OPTIONS, entry["options"], strict=True))
        name = options.pop("name")
        results.log(
            entry["hook"],
            name,
            torch.zeros(()),
            reduce_fx=entry["reduction"],
            rank_zero_only=entry["rank_zero_only"],
            sync_dist_fn=reduce,
            batch_size=1,
            **options,
        )
        metric = results[f"{entry['hook']}.{name}"]
        metric.value, metric.has_reset = entry["value"], entry["reset"]
        if entry["weight"] is not None:
            metric.cumulated_batch_size = entry["weight"]
        metric._forward_cache, metric._computed = entry["last"], None
