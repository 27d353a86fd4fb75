"""The arguments that the commands of recipes share."""

from pathlib import Path
from typing import Annotated, TypeAlias

from elastane.cli.options import argument, option
from elastane.integrations.recipes.recipe import Recipe
from elastane.integrations.recipes.recipe_files import list_recipes
from elastane.integrations.recipes.resolution import load_recipe


def complete_recipes(typed: str) -> list[str]:
    """Return the recipes of the catalog that begin with the typed letters."""
    return [name for name in list_recipes() if name.startswith(typed)]


RecipeName: TypeAlias = Annotated[
    str,
    argument(
        "NAME",
        "A recipe of elastane recipe list, or the path of your own .yaml file.",
        autocompletion=complete_recipes,
    ),
]
Changes: TypeAlias = Annotated[
    list[str] | None,
    option("KEY=VALUE", "Change a field of the recipe, such as training.steps=200. Repeatable.", "--set"),
]


def read_typed_recipe(named: str, changes: list[str] | None) -> Recipe:
    """Return the recipe that was typed, with the typed changes."""
    return load_recipe(named, changes or (), Path.cwd())


def get_stem(named: str) -> str:
    """Return the name of a recipe without folder and suffix."""
    return Path(named).name.removesuffix(".yaml").removesuffix(".yml")
