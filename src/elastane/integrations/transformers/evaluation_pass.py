"""An evaluation of a Trainer that the workers share: only losses are needed, not predictions."""

from typing import Any

import numpy as np
from torch.utils.data import IterableDataset, SequentialSampler
from transformers.trainer_pt_utils import find_batch_size
from transformers.trainer_utils import EvalLoopOutput

from elastane.runtime.session import Run


def is_shareable(trainer: Any, loader: Any, *, prediction_loss_only: bool) -> bool:
    """Return whether the workers can share an evaluation: it needs losses only, of samples in order."""
    dataset = getattr(loader, "dataset", None)
    sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    return (
        prediction_loss_only
        and not isinstance(dataset, IterableDataset)
        and isinstance(sampler, SequentialSampler)
        and not loader.drop_last
        and not trainer.args.batch_eval_metrics
    )


def evaluate_together(
    trainer: Any, run: Run, loader: Any, ignore_keys: list[str] | None, prefix: str
) -> EvalLoopOutput:
    """Evaluate the loss of a dataset, each worker some of its batches.

    The result has the bits of the Trainer's own loop: the losses of all batches, in their order, each as
    often as its batch has samples.

    Args:
        trainer: the Trainer.
        run: the run, between two steps.
        loader: the Trainer's loader of the dataset.
        ignore_keys: outputs of the model to ignore.
        prefix: of the names of the metrics.
    """
    args, model = trainer.args, trainer.model
    model.eval()
    trainer.callback_handler.eval_dataloader = loader
    batch, samples = loader.batch_sampler.batch_size, len(loader.dataset)
    score = run.evaluate(loader.dataset, microbatch=batch, collate=loader.collate_fn)
    for inputs in score:
        rows = find_batch_size(inputs) or batch
        trainer.values.begin()
        loss, _, _ = trainer.prediction_step(model, inputs, True, ignore_keys=ignore_keys)
        values = trainer.values.end()
        if loss is not None:
            score.gathered.add(loss=loss, **values)
            score.add(loss=loss.item() * rows, seen=rows)
    count = -(-samples // batch)
    for _ in range(count):
        trainer.control = trainer.callback_handler.on_prediction_step(args, trainer.state, trainer.control)
    trainer.values.add("eval", {name: found for name, found in score.gathered.items() if name != "loss"})
    metrics: dict[str, float] = {}
    if losses := score.gathered.get("loss"):
        sizes = [batch] * (count - 1) + [samples - batch * (count - 1)]
        each = np.repeat(np.asarray(losses, dtype=np.float32), sizes)
        finite = np.isfinite(each)
        if args.logging_nan_inf_filter and finite.any():
            each = each[finite]
        metrics[f"{prefix}_loss"] = each.mean().item()
    nothing: Any = None
    return EvalLoopOutput(predictions=nothing, label_ids=nothing, metrics=metrics, num_samples=samples)
