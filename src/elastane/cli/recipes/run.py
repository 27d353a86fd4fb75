"""``elastane recipe run``: train a recipe on this machine."""

import os
from pathlib import Path

import msgspec
import typer

from elastane.cli.command import AsJson, open_console
from elastane.cli.options import expand_options, list_explicit_options
from elastane.cli.recipes.arguments import Changes, RecipeName, get_stem, read_typed_recipe
from elastane.cli.recipes.preparation import prepare_for_run
from elastane.cli.run_names import generate_name
from elastane.cli.runs.run import open_new_run, train_to_end
from elastane.cli.runs.run_options import RunOptions
from elastane.common.extras import require
from elastane.common.home import find_runs_home
from elastane.integrations.recipes.recipe import Recipe
from elastane.integrations.recipes.recipe_files import format_recipe
from elastane.integrations.recipes.resolution import SCRIPTS, list_preloaded, resolve_recipe

HIDDEN = ("module", "resume", "accept_changes", "virtual_ranks")
"""Options of ``elastane run`` that a recipe decides, or that need no recipe."""


def run_recipe(
    context: typer.Context,
    named: RecipeName,
    changes: Changes = None,
    *,
    options: RunOptions,
    as_json: AsJson = False,
) -> None:
    """Train a recipe elastically, in the foreground, until the run is over.

    The options of elastane run win over the fields of the recipe: --workers over
    all numbers of workers, workers.sizes included. All data is read before the
    run begins. The complete recipe is stored in the run
    directory as recipe.yaml.

      $ elastane recipe run llama-tiny
      $ elastane recipe run llama-tiny --set training.steps=500 --workers 2:4
      $ elastane run --resume llama-tiny-amber-12
    """
    console = open_console(as_json=as_json)
    require("torch", "training needs torch")
    require("recipes", "recipes train models of transformers")
    recipe = resolve_recipe(read_typed_recipe(named, changes))
    run_name = options.name or generate_name(get_stem(named))
    directory = (options.run_dir or find_runs_home() / run_name).absolute()
    typed = list_explicit_options(context, left_out=("changes",))
    opened = open_new_run(
        Path(SCRIPTS[recipe.task]),
        (str(directory / "recipe.yaml"),),
        complete_options(options, recipe, run_name),
        typed,
        console,
        preload=list_preloaded(recipe),
        sizes=choose_sizes(options, recipe),
        recipe=format_recipe(recipe),
        prepare=lambda: prepare_for_run(recipe, console),
    )
    train_to_end(opened, console, as_json=as_json)


def choose_sizes(options: RunOptions, recipe: Recipe) -> tuple[int, ...]:
    """Return the only numbers of workers of the run; empty: all within its limits."""
    return () if options.workers is not None or options.debug else recipe.workers.sizes


def complete_options(options: RunOptions, recipe: Recipe, name: str) -> RunOptions:
    """Return the options of the run: the typed ones, and those of the recipe for the others."""
    workers, rules = recipe.workers, recipe.checkpoints
    cpus = max(2, len(os.sched_getaffinity(0)))
    most = max(workers.min, min(cpus, recipe.batch.virtual_ranks))
    limits = workers.min, workers.max or most
    if workers.sizes:
        limits = workers.sizes[0], workers.sizes[-1]
    defaults = {
        "workers": "{}:{}".format(*limits),
        "copies": str(workers.copies),
        "checkpoint_every": rules.every,
        "keep_last": rules.keep_last,
        "keep_best": rules.keep_best or None,
    }
    missing = {field: value for field, value in defaults.items() if getattr(options, field) is None}
    return msgspec.structs.replace(
        options, module=True, name=name, virtual_ranks=recipe.batch.virtual_ranks, **missing
    )


recipe_run = expand_options(run_recipe, left_out=HIDDEN)
