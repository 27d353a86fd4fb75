"""An evaluation of a Trainer that the workers share.

Each worker computes the results of some batches and gets those of the others. Then every worker runs the loop
of ``transformers`` over these results, so that the metrics are those of the Trainer alone, bit for bit.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.utils import recursively_apply
from torch.utils.data import IterableDataset, SequentialSampler
from transformers.trainer_pt_utils import find_batch_size
from transformers.trainer_utils import EvalLoopOutput

from elastane.run.worker.session import Run

RESULTS = ("loss", "logits", "labels", "inputs")
UNSHARED = "unshared"
"""Counts the batches with results that cannot be shared."""
SEPARATOR = "/"
"""A name has a part for each level: that of the whole, then for example "t0" for item 0 of a tuple."""


def is_shareable(trainer: Any, loader: Any) -> bool:
    """Return whether the workers can share an evaluation: its samples are in order and have positions."""
    dataset = getattr(loader, "dataset", None)
    sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    return (
        not isinstance(dataset, IterableDataset)
        and isinstance(sampler, SequentialSampler)
        and not loader.drop_last
        and not trainer.args.batch_eval_metrics
    )


def evaluate_together(
    trainer: Any,
    run: Run,
    loader: Any,
    ignore_keys: list[str] | None,
    *,
    prediction_loss_only: bool,
    evaluate: Callable[[Any], EvalLoopOutput],
) -> EvalLoopOutput | None:
    """Evaluate a dataset between two steps, each worker some of its batches; return the result.

    None: the model returns something else than tensors, which cannot be shared. ``evaluate`` runs the loop of
    ``transformers`` over a loader.
    """
    trainer.model.eval()
    trainer.callback_handler.eval_dataloader = loader
    batch = loader.batch_sampler.batch_size
    score = run.evaluate(loader.dataset, microbatch=batch, collate=loader.collate_fn)
    for inputs in score:
        rows = find_batch_size(inputs) or batch
        trainer.values.begin()
        results = predict(trainer, inputs, ignore_keys, prediction_loss_only=prediction_loss_only)
        score.gathered.add(**trainer.values.end())
        if (loss := results["loss"]) is not None:
            score.add(loss=loss.item() * rows, seen=rows)
        try:
            score.outputs.add(**flatten_results(results))
        except TypeError:
            score.gathered.add(**{UNSHARED: 1})
    gathered = dict(score.gathered)
    count = math.ceil(len(loader.dataset) / batch)
    if gathered.pop(UNSHARED, ()) or any(len(tensors) != count for tensors in score.outputs.values()):
        return None
    trainer.values.add("eval", gathered)
    with replace_predictions(trainer, ResultsLoader(trainer, run, loader, score.outputs)) as results_loader:
        return evaluate(results_loader)


def predict(
    trainer: Any, inputs: Any, ignore_keys: list[str] | None, *, prediction_loss_only: bool
) -> dict[str, Any]:
    """Return the results of a batch that the loop of ``transformers`` keeps, by their names in `RESULTS`."""
    loss, logits, labels = trainer.prediction_step(
        trainer.model, inputs, prediction_loss_only, ignore_keys=ignore_keys
    )
    if logits is not None and trainer.preprocess_logits_for_metrics is not None:
        logits = trainer.preprocess_logits_for_metrics(logits, labels)
    needs_inputs = "inputs" in trainer.args.include_for_metrics
    main_input = inputs[get_main_input_name(trainer)] if needs_inputs else None
    return dict(zip(RESULTS, (loss, logits, labels, main_input), strict=True))


def flatten_results(results: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors of the results of a batch.

    Raises:
        TypeError: a result has something else in it.
    """
    flat: dict[str, torch.Tensor] = {}
    for name, result in results.items():
        flat |= flatten_tensors(name, result)
    return flat


class ResultsLoader:
    """The results of all batches, by names in `flatten_results`, in place of loader and model."""

    def __init__(
        self, trainer: Any, run: Run, loader: Any, outputs: Mapping[str, Sequence[torch.Tensor]]
    ) -> None:
        self.dataset = loader.dataset
        self._trainer, self._run, self._loader, self._outputs = trainer, run, loader, outputs
        self._batch = loader.batch_sampler.batch_size
        self._results: dict[str, torch.Tensor] = {}
        # With Accelerate's loaders, the results of a last batch that is not full are cut.
        is_cut = isinstance(loader, DataLoaderStateMixin)
        self._cut_rows = len(self.dataset) % self._batch if is_cut else 0
        self._is_last = False

    def __len__(self) -> int:
        return math.ceil(len(self.dataset) / self._batch)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        # The callbacks see the Trainer's own loader.
        self._trainer.callback_handler.eval_dataloader = self._loader
        for number in range(len(self)):
            self._run.show_progress()
            self._is_last = number == len(self) - 1
            self._results = {name: tensors[number] for name, tensors in self._outputs.items()}
            rows = min(self._batch, len(self.dataset) - number * self._batch)
            main_input = nest_tensors("inputs", self._results)
            yield {
                get_main_input_name(self._trainer): torch.empty(rows, 0) if main_input is None else main_input
            }

    def take_results(self, *_args: Any, **_options: Any) -> tuple[Any, Any, Any]:
        """Return the loss, logits and labels of the current batch; it replaces ``prediction_step``."""
        loss, logits, labels = (nest_tensors(name, self._results) for name in RESULTS[:3])
        return loss, logits, labels

    def gather(self, results: Any) -> Any:
        """Return results as Accelerate gathers them on one device; it replaces ``gather_function``."""
        if not self._is_last or not self._cut_rows:
            return results
        return recursively_apply(lambda tensor: tensor[: self._cut_rows], results)


@contextmanager
def replace_predictions(trainer: Any, results: ResultsLoader) -> Iterator[ResultsLoader]:
    """Let a Trainer take the results of batches instead of computing them."""
    replaced = {
        "prediction_step": results.take_results,
        "gather_function": results.gather,
        "preprocess_logits_for_metrics": None,  # done
    }
    kept = {name: vars(trainer)[name] for name in replaced if name in vars(trainer)}
    vars(trainer).update(replaced)
    try:
        yield results
    finally:
        for name in replaced:
            vars(trainer).pop(name, None)
        vars(trainer).update(kept)


def get_main_input_name(trainer: Any) -> str:
    """Return the name of the model's main input, as the Trainer does."""
    return getattr(trainer.model, "main_input_name", "input_ids")


def flatten_tensors(name: str, value: Any) -> dict[str, torch.Tensor]:
    """Return the tensors in a value by name; None has none.

    Args:
        value: a tensor, or nested tuples, lists and dicts of tensors.

    Raises:
        TypeError: the value has something else in it.
    """
    if value is None:
        return {}
    if isinstance(value, torch.Tensor):
        return {name: value}
    flat: dict[str, torch.Tensor] = {}
    for part, item in _list_items(value):
        if item is None:
            raise TypeError("a nested None has no tensor")
        flat |= flatten_tensors(f"{name}{SEPARATOR}{part}", item)
    return flat


def _list_items(value: Any) -> Iterable[tuple[str, Any]]:
    if type(value) in {tuple, list} and value:
        kind = "t" if type(value) is tuple else "l"
        return [(f"{kind}{place}", item) for place, item in enumerate(value)]
    if type(value) is dict and value and all(isinstance(key, str) and SEPARATOR not in key for key in value):
        return [(f"k{key}", item) for key, item in value.items()]
    raise TypeError(f"a {type(value).__name__} is neither a tuple nor a list nor a dict of tensors")


def nest_tensors(name: str, flat: Mapping[str, torch.Tensor]) -> Any:
    """Return the value that `flatten_tensors` has taken apart."""
    if name in flat:
        return flat[name]
    beneath = f"{name}{SEPARATOR}"
    below = [key.removeprefix(beneath) for key in flat if key.startswith(beneath)]
    parts = list(dict.fromkeys(key.partition(SEPARATOR)[0] for key in below))
    if not parts:
        return None
    items = {part: nest_tensors(beneath + part, flat) for part in parts}
    kind = parts[0][0]
    if kind == "k":
        return {part[1:]: item for part, item in items.items()}
    ordered = [items[f"{kind}{place}"] for place in range(len(items))]
    return ordered if kind == "l" else tuple(ordered)
