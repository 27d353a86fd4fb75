"""Recipe files: the catalog, files of users, and recipes that extend others."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from elastane.common.document_parser import describe_type, parse_document
from elastane.common.documents import format_yaml, read_yaml
from elastane.common.errors import BadField, BadInput
from elastane.common.extras import require_for_import
from elastane.common.untrusted_data import Malformed, read_bytes
from elastane.integrations.recipes.recipe import ModelSpec, Recipe

CATALOG = Path(__file__).with_name("catalog")
SUFFIXES = (".yaml", ".yml")
EXTENDS = "extends"
MOST_ANCESTORS = 8
LARGEST_BYTES = 1 << 20
Document = dict[str, Any]


def list_recipes() -> tuple[str, ...]:
    """Return the names of the recipes in the catalog, sorted."""
    return tuple(sorted(path.stem for path in CATALOG.glob("*.yaml")))


def find_recipe(name: str, folder: Path) -> Path:
    """Return the file of a recipe of the catalog, or of a path in a folder that ends in ``.yaml``."""
    if name.endswith(SUFFIXES):
        return folder / Path(name).expanduser()
    if name in list_recipes():
        return CATALOG / f"{name}.yaml"
    near = get_close_matches(name, list_recipes(), n=1)
    raise BadInput(
        f"there is no recipe {name}",
        means="a recipe is a name of elastane recipe list, or the path of your own .yaml file",
        do=f"did you mean {near[0]}?" if near else "see elastane recipe list",
    )


def load_document(path: Path, ancestors: int = 0) -> Document:
    """Return the content of a recipe file, merged into the recipe that it extends.

    Relative paths of the file start from its folder.

    Raises:
        BadInput: the file cannot be read, is not a mapping, or extends itself.
    """
    document = make_paths_absolute(_read_mapping(path), path.absolute().parent)
    base: object = document.pop(EXTENDS, None)
    if base is None:
        return document
    if not isinstance(base, str) or ancestors >= MOST_ANCESTORS:
        raise BadInput(
            f"{path}: extends: {base!r} cannot be followed",
            means=f"a recipe extends one other, and at most {MOST_ANCESTORS} do so in a row",
            do="write the name of a recipe, or the path of its file",
        )
    below = load_document(find_recipe(base, path.parent), ancestors + 1)
    return merge_documents(_drop_other_sizes(below, document), document)


def merge_documents(below: Mapping[str, Any], above: Mapping[str, Any]) -> Document:
    """Return a document in which the values of ``above`` win; mappings are merged field by field."""
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[name] = merge_documents(old, value)
        else:
            merged[name] = value
    return merged


def find_published_sizes(source: str) -> ModelSpec | None:
    """Return the family and the sizes of a model of the hub; None: the catalog does not have it."""
    for path in sorted(CATALOG.glob("*.yaml")):
        if _read_mapping(path).get("model", {}).get("from") == source:
            return parse_recipe(load_document(path)).model
    return None


def make_paths_absolute(document: Document, folder: Path) -> Document:
    """Return a recipe, or a part of one, with paths that begin in an absolute folder."""
    anchored = dict(document)
    data, model = document.get("data"), document.get("model")
    if isinstance(data, dict):
        names = ("path", "held_out", "tokenizer", "chat_template")
        paths = {name: data[name] for name in names if name in data}
        anchored["data"] = data | _join_all(folder, paths)
        if isinstance(sites := data.get("sites"), dict):
            anchored["data"] |= {"sites": _join_all(folder, sites)}
    if isinstance(model, dict) and isinstance(source := model.get("from"), str) and is_path(source, folder):
        anchored["model"] = model | {"from": _join(folder, source)}
    return anchored


def is_path(source: str, folder: Path) -> bool:
    """Return whether the source of a model is a path, and not a URL or a name such as ``org/model``."""
    if "://" in source:
        return False
    return source.startswith((".", "/", "~")) or source.count("/") != 1 or (folder / source).exists()


def parse_recipe(document: Document) -> Recipe:
    """Return the recipe of a document."""
    return parse_document(document, Recipe, "recipe")


def read_recipe(named: str) -> Recipe:
    """Return the recipe for a training script.

    Args:
        named: the path of a recipe file, or its content on one line.
    """
    with require_for_import("recipes", "recipes are files in YAML"):
        if named.startswith("{"):
            document = read_yaml(named)
            return parse_recipe(document if isinstance(document, dict) else {})
        try:
            return parse_recipe(load_document(Path(named)))
        except BadField as error:
            raise BadInput(f"{named}: {error.what}", means=error.means, do=error.do) from error


def format_recipe(recipe: Recipe) -> str:
    """Return a recipe as YAML for `read_recipe`."""
    return format_yaml(msgspec.to_builtins(recipe))


def format_inline(recipe: Recipe) -> str:
    """Return a recipe on one line, for `read_recipe`."""
    return msgspec.json.encode(recipe).decode()


def _drop_other_sizes(below: Document, above: Document) -> Document:
    """Return the extended document without its sizes, if the other one is of another family of models."""
    old, new = below.get("model"), above.get("model")
    if (
        isinstance(old, dict)
        and isinstance(new, dict)
        and new.get("family", old.get("family")) != old.get("family")
    ):
        return below | {"model": {name: value for name, value in old.items() if name != "config"}}
    return below


def _join_all(folder: Path, paths: Document) -> Document:
    return {name: _join(folder, path) if isinstance(path, str) else path for name, path in paths.items()}


def _join(folder: Path, path: str) -> str:
    return str(folder / Path(path).expanduser()) if path else ""


def _read_mapping(path: Path) -> Document:
    try:
        document = read_yaml(read_bytes(path, LARGEST_BYTES))
    except (OSError, Malformed) as error:
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"cannot read the recipe {path}: {why}", do="check the path") from error
    except BadInput as error:
        raise BadInput(f"{path} {error.what}", means=error.means, do=error.do) from error
    if not isinstance(document, dict):
        raise BadInput(
            f"{path} is not a recipe: it is {describe_type(document)}",
            do="write fields, each with its value, as in elastane recipe show llama-tiny",
        )
    return document
