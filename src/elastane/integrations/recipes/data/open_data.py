"""The data of a recipe, as its training script opens it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastane.integrations.recipes.data.collation import Collate, PaddedCollation, stack_windows
from elastane.integrations.recipes.data.divided_samples import load_tokenizer, open_samples
from elastane.integrations.recipes.data.held_out import SampleSource
from elastane.integrations.recipes.data.spec import DataSpec, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["RecipeData", "load_tokenizer", "open_data"]


@dataclass(frozen=True)
class RecipeData:
    """The data of a recipe.

    Args:
        train: samples for training; a map-style dataset.
        held_out: samples for evaluations; None: the recipe holds none out.
        collate: makes a batch of a list of samples; see `elastane.integrations.recipes.data.collation`.
        summary: a sentence with the number of samples, and how many were truncated or dropped.
    """

    train: SampleSource
    held_out: SampleSource | None
    collate: Collate
    summary: str


def open_data(spec: DataSpec, tokenizer: "PreTrainedTokenizerFast", task: Task, context: int) -> RecipeData:
    """Return the samples of a recipe and how they become batches; see `open_samples`.

    Raises:
        BadInput: the data cannot be read, or a sample of it is invalid; the error names file and line.
    """
    samples = open_samples(spec, tokenizer, task, context)
    collate = stack_windows if task == "pretrain" else PaddedCollation(_find_padding(tokenizer), context)
    return RecipeData(samples.train, samples.held_out, collate, samples.summary)


def _find_padding(tokenizer: "PreTrainedTokenizerFast") -> int:
    padding = tokenizer.pad_token_id
    return padding if isinstance(padding, int) else 0
