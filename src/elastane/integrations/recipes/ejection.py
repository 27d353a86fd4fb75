"""The ejection of a recipe: its script and its complete YAML, as files of the user."""

from pathlib import Path

from elastane.common.atomic_file import replace_file
from elastane.common.errors import BadInput
from elastane.integrations.recipes.recipe import Recipe
from elastane.integrations.recipes.recipe_files import format_recipe
from elastane.integrations.recipes.resolution import SCRIPTS


def eject_recipe(recipe: Recipe, folder: Path) -> tuple[Path, Path]:
    """Write the script of a complete recipe and its YAML into a folder, which is made; return their paths.

    Raises:
        BadInput: a file of either name exists, or the folder cannot be written. Nothing was overwritten.
    """
    source = find_script_file(recipe)
    script, written = folder / source.name, folder / "recipe.yaml"
    for path in (script, written):
        if path.exists():
            raise BadInput(
                f"{path} exists already",
                means="it may be your own work, so nothing was written",
                do="name another folder, or remove the file",
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(script, source.read_bytes(), durable=False)
        replace_file(written, format_recipe(recipe).encode(), durable=False)
    except OSError as error:
        raise BadInput(
            f"cannot write {folder}: {error.strerror or error}", do="name another folder"
        ) from error
    return script, written


def find_script_file(recipe: Recipe) -> Path:
    """Return the file of the script that trains a recipe."""
    return Path(__file__).with_name("scripts") / f"{SCRIPTS[recipe.task].rpartition('.')[2]}.py"
