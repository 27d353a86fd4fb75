"""Checks of a recipe before anything is written: what can be known without torch."""

from difflib import get_close_matches
from itertools import pairwise
from typing import Any

from elastane.common.field_checks import make_field_error
from elastane.integrations.recipes.data.spec import check_data
from elastane.integrations.recipes.families import FAMILIES, ModelFamily
from elastane.integrations.recipes.recipe import BatchSpec, CheckpointRules, Recipe
from elastane.integrations.recipes.round_checks import check_rounds, check_sites
from elastane.run.nouns.checkpoint_policy import CheckpointSettings, parse_checkpoint_policy
from elastane.run.nouns.process_count import POWER, REFUSED_SETTINGS, WHY_POWER, is_process_count

CHECKPOINT_FIELDS = {
    "every": "checkpoints.every",
    "keep_last": "checkpoints.keep_last",
    "keep_every": "checkpoints.keep_every",
    "keep_best": "checkpoints.keep_best",
}


def check_recipe(recipe: Recipe, pretrained: dict[str, Any] | None = None) -> None:
    """Check that the parts of a recipe fit together.

    Args:
        recipe: its paths are absolute.
        pretrained: the configuration of the pretrained model; None: the recipe writes the configuration.

    Raises:
        BadField: a value is invalid; the error names it as ``--set`` does.
    """
    check_sizes(recipe)
    _check_training(recipe)
    if pretrained is None:
        _check_config(recipe)
    _check_context(recipe, pretrained or recipe.model.config)
    check_data(recipe.data, recipe.task)
    check_sites(recipe)
    parse_checkpoint_policy(describe_checkpoints(recipe.checkpoints), CHECKPOINT_FIELDS)


def check_sizes(recipe: Recipe) -> None:
    """Check the global batch, the rounds and the numbers of workers."""
    _check_batch(recipe.batch)
    check_rounds(recipe)
    _check_processes(recipe)
    _check_workers(recipe)


def describe_checkpoints(rules: CheckpointRules) -> CheckpointSettings:
    """Return the checkpoint rules of a recipe as those of a job."""
    return CheckpointSettings(every=rules.every, keep_last=rules.keep_last, keep_best=rules.keep_best)


def _check_batch(batch: BatchSpec) -> None:
    if batch.size % batch.microbatch:
        nearest = max(size for size in range(1, batch.microbatch + 1) if batch.size % size == 0)
        raise make_field_error(
            "batch.microbatch",
            f"{batch.microbatch} does not divide batch.size, which is {batch.size}",
            f"write a divisor of {batch.size}, such as {nearest}",
            means="a step consists of whole microbatches, which the workers share",
        )


def _check_processes(recipe: Recipe) -> None:
    """Check that the processes of a worker can divide the model and share the microbatches."""
    workers, batch, processes = recipe.workers, recipe.batch, recipe.workers.processes
    field = "workers.processes"
    if not is_process_count(processes):
        raise make_field_error(field, f"{processes} is not a power of two", f"write {POWER}", means=WHY_POWER)
    if processes == 1:
        return
    if batch.microbatches % processes:
        raise make_field_error(
            field,
            f"{processes} processes cannot share the {batch.microbatches} microbatches of a step equally",
            f"write a batch.size that is a multiple of {processes} times batch.microbatch",
            means="the processes of a worker compute one microbatch each, all at the same time",
        )
    if recipe.task == "preference" and recipe.lora is None:
        raise make_field_error(
            field,
            f"{processes} cannot be combined with the task preference without lora",
            f"write {field}: 1; or train an adapter: lora",
            means="the model before the training is a second one then, which nothing divides yet",
        )
    allowed, why = REFUSED_SETTINGS["copies"]
    if workers.copies != allowed:
        raise make_field_error(
            "workers.copies",
            f"{workers.copies} cannot be combined with {field}: {processes}",
            f"write workers.copies: {allowed}",
            means=why,
        )


def _check_workers(recipe: Recipe) -> None:
    workers, most = recipe.workers, recipe.most_workers
    if workers.max and workers.min > workers.max:
        raise make_field_error(
            "workers.min", f"{workers.min} is more than workers.max", f"write up to {workers.max}"
        )
    several = workers.processes > 1
    words = f"groups of {workers.processes} microbatches of a step" if several else "microbatches of a step"
    write = "a smaller batch.microbatch"
    if recipe.training.rounds is not None:
        words, write = "virtual ranks of a round", "more training.rounds.ranks"
    for field, count in (("workers.min", workers.min), ("workers.max", workers.max)):
        if count > most:
            raise make_field_error(
                field,
                f"{count} is more than the {most} {words}",
                f"write up to {most}, or {write}",
                means="each worker computes at least one of them",
            )
    sizes = workers.sizes
    if any(low >= high for low, high in pairwise(sizes)):
        raise make_field_error(
            "workers.sizes", f"{list(sizes)} does not ascend", "write each size once, ascending"
        )
    if sizes and (sizes[0] < workers.min or sizes[-1] > (workers.max or most)):
        raise make_field_error(
            "workers.sizes",
            f"{list(sizes)} is not within {workers.min} and {workers.max or most}",
            "write sizes from workers.min to workers.max",
        )


def _check_training(recipe: Recipe) -> None:
    training = recipe.training
    if training.steps and training.warmup_steps >= training.steps:
        raise make_field_error(
            "training.warmup_steps",
            f"{training.warmup_steps} is not less than training.steps, which is {training.steps}",
            f"write up to {training.steps - 1}",
            means="the learning rate would never reach its highest value",
        )
    if recipe.checkpoints.keep_best.partition(":")[0] not in ("", "eval_loss"):
        raise make_field_error(
            "checkpoints.keep_best",
            f"{recipe.checkpoints.keep_best} names no metric of a recipe",
            "write eval_loss:min",
        )


def _check_config(recipe: Recipe) -> None:
    """Check the configuration of a model with random weights."""
    config, family = recipe.model.config, FAMILIES[recipe.model.family]
    if not config:
        raise make_field_error(
            "model",
            "has neither from nor config",
            "write from, a folder with a pretrained model, or config, its sizes",
            means="there is no model to train",
        )
    for name in config:
        if name not in family.fields:
            near = get_close_matches(name, family.fields, n=1)
            raise make_field_error(
                f"model.config.{name}",
                f"a model of the family {recipe.model.family} has no such field",
                f"write {near[0]}" if near else f"remove it; the fields are {', '.join(family.fields)}",
            )
    _check_heads(config, family)
    if "vocab_size" in config and not recipe.data.tokenizer:
        raise make_field_error(
            "data.tokenizer",
            "is empty, and the model has a vocabulary of a fixed size",
            "write the folder of the tokenizer: --set data.tokenizer=FOLDER; or remove "
            "model.config.vocab_size, to train a small tokenizer on the data",
            means="the model needs the tokenizer that its vocabulary belongs to",
        )


def _check_heads(config: dict[str, Any], family: ModelFamily) -> None:
    width, heads = config.get(family.width), config.get(family.heads)
    for name, value in ((family.width, width), (family.heads, heads)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise make_field_error(f"model.config.{name}", f"{value!r} is not a size", "write a whole number")
    groups = config.get("num_key_value_heads")
    if isinstance(width, int) and isinstance(heads, int) and "head_dim" not in config and width % heads:
        raise make_field_error(
            f"model.config.{family.heads}",
            f"{heads} does not divide {family.width}, which is {width}",
            "write a divisor of it",
        )
    if isinstance(groups, int) and isinstance(heads, int) and (groups < 1 or heads % groups):
        raise make_field_error(
            "model.config.num_key_value_heads",
            f"{groups} does not divide {family.heads}, which is {heads}",
            "write a divisor of it",
        )


def _check_context(recipe: Recipe, config: dict[str, Any]) -> None:
    names = {"max_position_embeddings", "n_positions"}
    longest = min((v for k, v in config.items() if k in names and isinstance(v, int)), default=None)
    if longest is not None and recipe.batch.context > longest:
        raise make_field_error(
            "batch.context",
            f"{recipe.batch.context} is longer than the {longest} positions of the model",
            f"write up to {longest}",
            means="the model cannot tell later positions apart",
        )
