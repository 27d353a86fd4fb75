"""The data of a recipe, prepared before a run or a job exists."""

from typing import TYPE_CHECKING

import msgspec

from elastane.cli.torch_process import run_module
from elastane.common.extras import MissingExtra, require
from elastane.integrations.recipes.prepared_data import PreparedData
from elastane.integrations.recipes.recipe import Recipe

if TYPE_CHECKING:
    from rich.console import Console


def prepare_for_run(recipe: Recipe, console: "Console") -> None:
    """Read all data of a recipe on this machine, encode it into the cache of the user, and print its size.

    Args:
        recipe: complete and checked.
        console: for the sentence.

    Raises:
        BadInput: a row is bad, or the tokenizer cannot be used; nothing of the run exists.
    """
    request = msgspec.json.encode(recipe).decode()
    prepared = run_module("elastane.integrations.recipes.data_preparation", [request], PreparedData)
    console.print(prepared.describe(), markup=False)


def prepare_for_job(recipe: Recipe, console: "Console") -> None:
    """Read all data of a recipe as for a run, if this machine can; the nodes have the same files.

    Raises:
        BadInput: as for a run; no job exists.
    """
    try:
        require("torch", "training needs torch")
        require("recipes", "recipes train models of transformers")
    except MissingExtra as missing:
        console.print(f"note: the rows of the data are not checked here: {missing.what}", markup=False)
    else:
        prepare_for_run(recipe, console)
