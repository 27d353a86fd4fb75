"""The resolution of a recipe: from a name and typed changes to one complete, checked value."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from elastane.common.errors import BadField, BadInput
from elastane.common.extras import require_for_import
from elastane.integrations.recipes.families import FAMILIES
from elastane.integrations.recipes.model_source import is_on_hub, locate_model, read_pretrained_config
from elastane.integrations.recipes.overrides import apply_overrides
from elastane.integrations.recipes.recipe import Recipe
from elastane.integrations.recipes.recipe_checks import check_recipe
from elastane.integrations.recipes.recipe_files import (
    find_published_sizes,
    find_recipe,
    load_document,
    parse_recipe,
)

SCRIPTS = {
    "pretrain": "elastane.integrations.recipes.scripts.train",
    "finetune": "elastane.integrations.recipes.scripts.train",
    "preference": "elastane.integrations.recipes.scripts.prefer",
}
"""The module that trains each task."""


def load_recipe(name: str, changes: Iterable[str], folder: Path) -> Recipe:
    """Return a recipe with the typed changes; only the form of its values is checked.

    Args:
        name: of the catalog, or the path of a file.
        changes: as ``training.steps=200``.
        folder: where relative paths start, absolute.

    Raises:
        BadInput: there is no such recipe, or a value has the wrong form.
    """
    with require_for_import("recipes", "recipes are files in YAML"):
        path = find_recipe(name, folder)
        written = load_document(path)
        try:
            return parse_recipe(apply_overrides(written, changes, folder))
        except BadField as error:
            # Blame the file only if it is wrong without the changes.
            if fails_alike(written, error):
                raise BadInput(f"{path}: {error.what}", means=error.means, do=error.do) from error
            raise BadInput(f"--set {error.what}", means=error.means, do=error.do) from error


def resolve_recipe(recipe: Recipe) -> Recipe:
    """Return a recipe that needs nothing but this machine, after all checks that need no torch.

    A model of the hub is downloaded, and a pretrained model brings its tokenizer.

    Raises:
        BadField: a value is invalid; nothing was written.
    """
    if not recipe.model.source:
        check_recipe(recipe)
        return recipe
    folder = locate_model(recipe.model.source)
    config = read_pretrained_config(folder)
    model = msgspec.structs.replace(recipe.model, source=str(folder), config={})
    tokenizer = recipe.data.tokenizer or str(folder)
    data = msgspec.structs.replace(recipe.data, tokenizer=tokenizer)
    resolved = msgspec.structs.replace(recipe, model=model, data=data)
    check_recipe(resolved, config)
    return resolved


def resolve_without_download(recipe: Recipe) -> Recipe:
    """Return a recipe that names its model of the hub as before, after the checks that need no download.

    Its training script resolves it with `resolve_recipe`. A recipe of another model is resolved here.

    Raises:
        BadField: a value is invalid; nothing was written.
    """
    if not is_on_hub(recipe.model.source):
        return resolve_recipe(recipe)
    sizes = find_published_sizes(recipe.model.source)
    recipe = msgspec.structs.replace(recipe, model=msgspec.structs.replace(recipe.model, config={}))
    check_recipe(recipe, {} if sizes is None else sizes.config)
    return recipe


def fails_alike(document: dict[str, object], error: BadField) -> bool:
    """Return whether a document has the same mistake."""
    try:
        parse_recipe(document)
    except BadField as own:
        return own.what == error.what
    return False


def list_preloaded(recipe: Recipe) -> tuple[str, ...]:
    """Return the modules that every worker of a recipe imports; a fork server loads them once for all."""
    family = FAMILIES[recipe.model.family].model_type
    modules = [SCRIPTS[recipe.task], "transformers.generation.utils"]
    if not recipe.model.source:
        modules.append(f"transformers.models.{family}.modeling_{family}")
    return (*modules, *(["peft"] if recipe.lora is not None else []))
