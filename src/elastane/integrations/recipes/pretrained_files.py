"""Checks of the files of a pretrained model, without loading its weights."""

from pathlib import Path
from typing import Any

from elastane.common.errors import BadField
from elastane.common.safe_text import escape_line, fold_text
from elastane.common.untrusted_data import Malformed, decode_object, read_bytes
from elastane.integrations.recipes.model_source import FIELD

INDEX = "model.safetensors.index.json"
LARGEST_INDEX_BYTES = 64 << 20


def check_pretrained_files(folder: Path) -> None:
    """Check that ``transformers`` knows the model of a folder, and that no file of its weights is cut off.

    Raises:
        BadField: the model cannot be loaded.
    """
    _check_architecture(folder)
    present = {file.name for file in folder.glob("*.safetensors")}
    missing = sorted(_list_shards(folder) - present)
    if missing:
        raise _build_weights_error(f"{folder} has no file {escape_line(missing[0])}, which {INDEX} names")
    for name in sorted(present):
        _check_weights(folder / name)


def _check_architecture(folder: Path) -> None:
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # `transformers` raises many kinds for a file that it does not understand
        raise BadField(
            FIELD,
            f"{folder / 'config.json'} describes no model that transformers knows: "
            f"{fold_text(str(error), 300)}",
            means="the architecture of the model is unknown, and no code of its folder runs",
            do="name a model of an architecture in this version of transformers",
        ) from error


def _list_shards(folder: Path) -> set[str]:
    if not (folder / INDEX).is_file():
        return set()
    try:
        shards: Any = decode_object(read_bytes(folder / INDEX, LARGEST_INDEX_BYTES)).get("weight_map")
    except (OSError, Malformed) as error:
        raise _build_weights_error(f"{folder / INDEX} cannot be read: {error}") from error
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise _build_weights_error(f"{folder / INDEX} has no weight_map")
    return set(shards.values())


def _check_weights(file: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        # It compares the offsets of all tensors with the size of the file.
        with safe_open(file, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise _build_weights_error(f"{file} cannot be read: {fold_text(str(error), 200)}") from error


def _build_weights_error(wrong: str) -> BadField:
    return BadField(
        FIELD,
        wrong,
        means="the weights of the model are incomplete",
        do="copy or download the files of the model again",
    )
