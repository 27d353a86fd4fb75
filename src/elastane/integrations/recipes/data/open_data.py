"""The data of a recipe, as its training script opens it, and the batches that its samples become.

Batches are dicts of tensors, which the losses of the tasks take. ``input_ids`` and ``targets`` have the shape
(sequences, tokens). A target is the token that follows its input, or -100 where nothing is learned: unlike
the ``labels`` of `transformers`, targets are already shifted.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from elastane.integrations.recipes.data.divided_samples import (
    load_tokenizer,
    open_held_out,
    open_samples,
    open_site,
)
from elastane.integrations.recipes.data.held_out import SampleSource
from elastane.integrations.recipes.data.sample_file import IGNORED, Positions
from elastane.integrations.recipes.data.spec import DataSpec, Task
from elastane.run.nouns.membership import SiteName

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["RecipeData", "load_tokenizer", "open_data"]

Batch: TypeAlias = dict[str, torch.Tensor]
Collate: TypeAlias = Callable[[Sequence[tuple[Positions, ...]]], Batch]
ROUNDED = 16
"""The lengths of padded batches are multiples of this number, so that there are fewer shapes."""


@dataclass(frozen=True)
class RecipeData:
    """The data of a recipe.

    Args:
        train: samples for training, a map-style dataset; or of each site a function that opens them.
        held_out: samples for evaluations; None: the recipe holds none out.
        collate: makes a batch of a list of samples; see the module.
        summary: a sentence with the number of samples, and how many were truncated or dropped.
    """

    train: Any
    held_out: SampleSource | None
    collate: Collate
    summary: str

    @property
    def samples(self) -> int:
        """The number of samples for training; 0: each site has its own."""
        return 0 if isinstance(self.train, Mapping) else len(self.train)


def open_data(spec: DataSpec, tokenizer: "PreTrainedTokenizerFast", task: Task, context: int) -> RecipeData:
    """Return the samples of a recipe and how they become batches; see `open_samples` and `open_site`."""
    collate = stack_windows if task == "pretrain" else PaddedCollation(_find_padding(tokenizer), context)
    if spec.sites:
        sites = {
            site: functools.partial(_open_train, spec, site, tokenizer, task, context) for site in spec.sites
        }
        held_out = open_held_out(spec, tokenizer, task, context)
        return RecipeData(sites, held_out, collate, f"data of {len(sites)} sites")
    samples = open_samples(spec, tokenizer, task, context)
    return RecipeData(samples.train, samples.held_out, collate, samples.summary)


def _open_train(
    spec: DataSpec, site: SiteName, tokenizer: "PreTrainedTokenizerFast", task: Task, context: int
) -> SampleSource:
    return open_site(spec, site, tokenizer, task, context).train


def _find_padding(tokenizer: "PreTrainedTokenizerFast") -> int:
    padding = tokenizer.pad_token_id
    return padding if isinstance(padding, int) else 0


def stack_windows(samples: Sequence[tuple[Positions, ...]]) -> Batch:
    """Return a batch of full windows, for pretraining."""
    return {
        "input_ids": torch.from_numpy(np.stack([sample[0] for sample in samples])),
        "targets": torch.from_numpy(np.stack([sample[1] for sample in samples])),
    }


class PaddedCollation:
    """Pads sequences on the right to the longest of the batch.

    The length depends on the samples of the microbatch alone. A batch of preference pairs has all chosen
    sequences first, then all rejected ones in the same order.

    Args:
        padding: the token at padded positions.
        context: the most tokens of a sequence.
    """

    def __init__(self, padding: int, context: int) -> None:
        self._padding, self._context = padding, context

    def __call__(self, samples: Sequence[tuple[Positions, ...]]) -> Batch:
        sequences = len(samples[0]) // 2
        inputs = [sample[2 * sequence] for sequence in range(sequences) for sample in samples]
        targets = [sample[2 * sequence + 1] for sequence in range(sequences) for sample in samples]
        longest = max(map(len, inputs))
        length = min(-(-longest // ROUNDED) * ROUNDED, self._context)
        shape = (len(inputs), length)
        batch = {
            "input_ids": torch.full(shape, self._padding, dtype=torch.int64),
            "attention_mask": torch.zeros(shape, dtype=torch.int64),
            "targets": torch.full(shape, IGNORED, dtype=torch.int64),
        }
        for row, (tokens, following) in enumerate(zip(inputs, targets, strict=True)):
            batch["input_ids"][row, : len(tokens)] = torch.from_numpy(tokens)
            batch["attention_mask"][row, : len(tokens)] = 1
            batch["targets"][row, : len(tokens)] = torch.from_numpy(following)
        return batch
