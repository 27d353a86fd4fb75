"""The values that hooks and steps have logged in the current epoch, as a worker that joins receives them."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection, _ResultMetric

from elastane.common.errors import BadInput

OPTIONS = ("name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx")


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
