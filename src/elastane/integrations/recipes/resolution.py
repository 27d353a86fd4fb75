"""The resolution of a recipe: from a name and typed changes to a checked value, or a script in a folder."""

from collections.abc import Iterable
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from elastane.common.atomic_file import replace_file
from elastane.common.documents import read_yaml
from elastane.common.errors import BadField, BadInput
from elastane.common.extras import require_for_import
from elastane.integrations.recipes.families import FAMILIES
from elastane.integrations.recipes.model_source import (
    is_at_url,
    is_on_hub,
    locate_model,
    read_pretrained_config,
)
from elastane.integrations.recipes.recipe import Recipe
from elastane.integrations.recipes.recipe_checks import check_recipe
from elastane.integrations.recipes.recipe_files import (
    Document,
    find_published_sizes,
    find_recipe,
    format_recipe,
    load_document,
    make_paths_absolute,
    merge_documents,
    parse_recipe,
)
from elastane.integrations.recipes.stored_model import fetch_model

SCRIPTS = {
    "pretrain": "elastane.integrations.recipes.scripts.train",
    "finetune": "elastane.integrations.recipes.scripts.train",
    "preference": "elastane.integrations.recipes.scripts.prefer",
}
"""The module that trains each task."""
MOST_LEVELS = 8
WARMUP_PART = 10
"""A warm-up that follows from the steps takes this part of them."""


def load_recipe(name: str, changes: Iterable[str], folder: Path) -> Recipe:
    """Return a recipe of the catalog, or of a path, with typed changes; only the form of values is checked.

    Relative paths begin in an absolute folder.
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

    A model of the hub is downloaded, one at a URL is copied, and a pretrained model brings its tokenizer.

    Raises:
        BadField: a value is invalid; nothing was written.
    """
    if not recipe.model.source:
        check_recipe(recipe)
        return recipe
    source, digest = recipe.model.source, recipe.model.digest
    folder = fetch_model(source, digest) if is_at_url(source) else locate_model(source)
    config = read_pretrained_config(folder)
    model = msgspec.structs.replace(recipe.model, source=str(folder), digest="", config={})
    tokenizer = recipe.data.tokenizer or str(folder)
    data = msgspec.structs.replace(recipe.data, tokenizer=tokenizer)
    resolved = msgspec.structs.replace(recipe, model=model, data=data)
    check_recipe(resolved, config)
    return resolved


def pin_model(resolved: Recipe, written: Recipe) -> Recipe:
    """Return a resolved recipe for machines that do not share the cache of this one.

    It names a model at a URL as it was written, and the digest of its files. Each machine resolves it again.
    """
    if not is_at_url(written.model.source):
        return resolved
    digest = Path(resolved.model.source).name
    model = msgspec.structs.replace(resolved.model, source=written.model.source, digest=digest)
    return msgspec.structs.replace(resolved, model=model, data=written.data)


def resolve_without_download(recipe: Recipe) -> Recipe:
    """Return a recipe that names its model of the hub or at a URL as before, after checks without a download.

    Its training script resolves it with `resolve_recipe`. A recipe of another model is resolved here.

    Raises:
        BadField: a value is invalid; nothing was written.
    """
    if not (is_on_hub(recipe.model.source) or is_at_url(recipe.model.source)):
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
    if recipe.workers.processes > 1:
        modules.append("torch.distributed.fsdp")
    return (*modules, *(["peft"] if recipe.lora is not None else []))


def apply_overrides(document: Document, texts: Iterable[str], folder: Path) -> Document:
    """Return a recipe's document with changes typed as ``training.steps=200``; later ones win.

    Relative paths in them begin in an absolute folder. Their names are checked with the recipe.
    """
    changes: Document = {}
    for text in texts:
        changes = merge_documents(changes, make_paths_absolute(parse_override(text), folder))
    return _shorten_warmup(merge_documents(document, changes), changes)


def _shorten_warmup(document: Document, changes: Document) -> Document:
    """Let the warm-up follow if only the steps were typed, and the recipe's own warm-up does not fit in."""
    typed, training = changes.get("training"), document.get("training")
    if not isinstance(typed, dict) or not isinstance(training, dict) or "warmup_steps" in typed:
        return document
    steps, warmup = typed.get("steps"), training.get("warmup_steps")
    if not isinstance(steps, int) or not isinstance(warmup, int) or not 0 < steps <= warmup:
        return document
    return merge_documents(document, {"training": {"warmup_steps": steps // WARMUP_PART}})


def parse_override(text: str) -> Document:
    """Return the document of one change: ``{"training": {"steps": 200}}``."""
    name, equals, value = text.partition("=")
    steps = name.strip().split(".")
    if not equals or not all(steps) or len(steps) > MOST_LEVELS:
        raise BadInput(
            f"invalid --set: {text!r} is not KEY=VALUE",
            means="KEY is the dotted name of a field, as elastane recipe show prints them",
            do="write for example --set training.steps=200",
        )
    document: Any = _read_value(steps, value)
    for step in reversed(steps):
        document = {step: document}
    return dict(document)


def _read_value(steps: list[str], text: str) -> object:
    """Return the typed value of a field: a text where the recipe wants one, else what YAML makes of it."""
    kind: object = Recipe
    for step in steps:
        kind = _find_field(kind, step)
    if _is_text(kind) and (kind is str or not _is_number(text)):
        return text
    try:
        return read_yaml(text)
    except BadInput as error:
        raise BadInput(
            f"--set {'.'.join(steps)}: the value {text!r} {error.what}", means=error.means, do=error.do
        ) from error


def _find_field(kind: object, name: str) -> object:
    """Return the type of a field of a struct; None: it has no such field."""
    for choice in (kind, *get_args(kind)):
        if isinstance(choice, type) and issubclass(choice, msgspec.Struct):
            fields = msgspec.structs.fields(choice)
            return next((field.type for field in fields if field.encode_name == name), None)
    return None


def _is_text(kind: object) -> bool:
    """Return whether a value of this type may be any text."""
    return kind is str or (get_origin(kind) in (UnionType, Union) and str in get_args(kind))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


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
