"""The data of a recipe, read and encoded before a run begins; ``elastane recipe run`` starts this program.

    python -m elastane.integrations.recipes.data_preparation RECIPE

RECIPE is a complete recipe in JSON. The program reads every row, so a bad one is found while nothing of the
run exists, and leaves the tokens in the cache for the workers. It also checks the files of a pretrained
model. It prints a `PreparedData` in JSON.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from elastane.common.errors import BadInput
from elastane.common.field_checks import make_field_error
from elastane.common.user_cache import find_cache
from elastane.integrations.recipes.data.divided_samples import (
    load_tokenizer,
    open_held_out,
    open_samples,
    open_site,
)
from elastane.integrations.recipes.data.files import find_files
from elastane.integrations.recipes.data.spec import DataSpec
from elastane.integrations.recipes.model_source import check_pretrained_files, read_pretrained_config
from elastane.integrations.recipes.prepared_data import PreparedData
from elastane.integrations.recipes.recipe import Recipe, count_training_steps
from elastane.integrations.recipes.recipe_plan import format_bytes
from elastane.run.nouns.torch_answers import print_answer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MUCH_BYTES = 50_000_000
"""Data of this size and more is announced, because the user waits for it."""


def prepare_data(recipe: Recipe) -> PreparedData:
    """Read and encode all data of a recipe, as its workers will; of sites, those that the recipe names.

    Raises:
        BadInput: the data, the tokenizer or the model cannot be used; the error names the file and the row.
    """
    if recipe.model.source:
        check_pretrained_files(Path(recipe.model.source))
    announce_much_data(recipe.data)
    with explain_file_errors():
        tokenizer = load_tokenizer(recipe.data, recipe.task)
        check_vocabulary(recipe, len(tokenizer))
        if recipe.data.sites:
            return prepare_sites(recipe, tokenizer)
        samples = open_samples(recipe.data, tokenizer, recipe.task, recipe.batch.context)
    check_warmup(recipe, len(samples.train))
    return PreparedData(
        train=len(samples.train),
        held_out=0 if samples.held_out is None else len(samples.held_out),
        summary=samples.summary,
    )


def prepare_sites(recipe: Recipe, tokenizer: "PreTrainedTokenizerFast") -> PreparedData:
    """Read and encode the data of all sites of a recipe, and that for evaluations."""
    data, task, context = recipe.data, recipe.task, recipe.batch.context
    sites = {site: open_site(data, site, tokenizer, task, context) for site in data.sites}
    held_out = open_held_out(data, tokenizer, task, context)
    return PreparedData(
        train=sum(len(samples.train) for samples in sites.values()),
        held_out=0 if held_out is None else len(held_out),
        summary="; ".join(f"{site}: {samples.summary}" for site, samples in sites.items()),
    )


@contextmanager
def explain_file_errors() -> Iterator[None]:
    """Turn an error of a data file, or of the cache, into one that names the file."""
    try:
        yield
    except OSError as error:
        cache = find_cache("recipes")
        raise BadInput(
            f"the data cannot be prepared: {error.filename or cache}: {error.strerror or error}",
            means=f"the tokens of the data files go into the cache, {cache}",
            do="make the files readable; for the cache free some space, or set XDG_CACHE_HOME",
        ) from error


def announce_much_data(spec: DataSpec) -> None:
    """Say on stderr that the data will take a while, if it is large."""
    named = (spec.path, *spec.sites.values(), spec.held_out)
    paths = [path for path in named if isinstance(path, str) and path]
    size = sum(file.stat().st_size for path in paths for file in find_files(spec, path).files)
    if size >= MUCH_BYTES:
        sys.stderr.write(f"reading {format_bytes(size)} of data; its tokens stay in the cache\n")
        sys.stderr.flush()


def check_vocabulary(recipe: Recipe, tokens: int) -> None:
    """Check that the model of a complete recipe has an embedding for each token of the tokenizer."""
    source = recipe.model.source
    config = read_pretrained_config(Path(source)) if source else recipe.model.config
    size = config.get("vocab_size")
    if isinstance(size, int) and tokens > size:
        raise make_field_error(
            "data.tokenizer",
            f"has {tokens:,} tokens, and the model has {size:,}",
            f"write the folder of the model's own tokenizer{'' if source else ', or another vocab_size'}",
            means="the model knows no token beyond its own",
        )


def check_warmup(recipe: Recipe, samples: int) -> None:
    """Check that the epochs of a run with these samples are longer than its warm-up."""
    steps, warmup = count_training_steps(recipe, samples), recipe.training.warmup_steps
    if warmup >= steps:
        raise make_field_error(
            "training.warmup_steps",
            f"{warmup} is not less than the {steps} steps that {samples:,} samples make",
            f"write {'up to ' if steps > 1 else ''}{steps - 1}, or more training.epochs",
            means="the learning rate would never reach its highest value",
        )


def hide_torch() -> None:
    """Let ``transformers`` do without torch: tokenizers need none, and its import takes seconds."""
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
    sys.modules["torch"] = None  # type: ignore[assignment]


def main() -> int:
    """Prepare the recipe of the first argument, and print the result."""
    hide_torch()
    recipe = msgspec.json.decode(sys.argv[1], type=Recipe)
    return print_answer(lambda: prepare_data(recipe))


if __name__ == "__main__":
    sys.exit(main())
