"""The source of a pretrained model: a folder, or a name on the hub that is downloaded once, before a run.

Its files are checked without loading the weights.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from elastane.common.errors import BadField
from elastane.common.extras import require_for_import
from elastane.common.safe_text import escape_line, fold_text
from elastane.common.untrusted_data import Malformed, decode_object, read_bytes

FIELD = "model.from"
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
DOWNLOADED = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
"""The files of a model on the hub that a run needs; no code is among them."""
NOT_DOWNLOADED = (*(f"*/{kind}" for kind in DOWNLOADED if kind != "*.jinja"), "consolidated*.safetensors")
"""The patterns of the hub match files in subfolders, too. Such files, and the consolidated ones, are often a
copy of all weights in the format of the publisher. Only chat templates may be in a subfolder."""
CONFIG = "config.json"
LARGEST_CONFIG_BYTES = 4 << 20
QUANTIZATION = "quantization_config"
MXFP4 = "mxfp4"
"""The quantization of the published GPT-OSS, the only one that is undone when a model is loaded."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
"""The name of the folder of a download in the local cache."""
INDEX = "model.safetensors.index.json"
LARGEST_INDEX_BYTES = 64 << 20


def locate_model(source: str) -> Path:
    """Return the folder of a pretrained model that is not at a URL; download a model of the hub first."""
    if not is_on_hub(source):
        return Path(source)
    # The weights may be large, so refuse those that cannot be trained before they are downloaded.
    config = download_config(source)
    read_model_config(config)
    # The owner of the name may publish other weights at any time; these are of the checked configuration.
    commit = config.name if _COMMIT.fullmatch(config.name) else ""
    return download_model(f"{source.partition('@')[0]}@{commit}" if commit else source)


def is_at_url(source: str) -> bool:
    """Return whether the source of a model is the URL of a store."""
    return "://" in source


def is_on_hub(source: str) -> bool:
    """Return whether the source of a checked recipe is on the hub; others are URLs or absolute paths."""
    return bool(source) and not is_at_url(source) and not Path(source).is_absolute()


def read_pretrained_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of the model in a folder that also has its weights."""
    config = read_model_config(folder)
    check_has_weights([file.name for file in folder.iterdir()], str(folder))
    return config


def check_has_weights(names: Iterable[str], place: str) -> None:
    """Check that files with weights are among those of a model."""
    if not any(fnmatchcase(name, pattern) for name in names for pattern in WEIGHTS):
        raise BadField(
            FIELD,
            f"{place} has a config.json and no weights",
            means="the training would start from nothing",
            do="copy the .safetensors files into it; or write model.config, to start from random weights",
        )


def read_model_config(folder: Path, place: str = "") -> dict[str, Any]:
    """Return the configuration of the model in a folder, which may lack weights.

    Args:
        place: from which its files were copied, for errors; empty: none.
    """
    if not folder.is_dir():
        raise BadField(FIELD, f"no such folder: {folder}", do="correct the path")
    config = folder / CONFIG
    if not config.is_file() and (folder / "adapter_config.json").is_file():
        raise BadField(
            FIELD,
            f"{folder} holds an adapter, not a model",
            means="only a model can be trained further",
            do="merge the adapter into its base model, and name the folder of the result",
        )
    if not config.is_file():
        raise BadField(
            FIELD,
            f"{folder} has no config.json",
            means="the architecture of the model is unknown",
            do="name a folder that save_pretrained or a finished run has written",
        )
    try:
        found = decode_object(read_bytes(config, LARGEST_CONFIG_BYTES))
    except (OSError, Malformed) as error:
        raise BadField(
            FIELD,
            f"{place or folder}/{CONFIG} cannot be read: {error}",
            do="restore the file, or name another folder",
        ) from error
    _check_quantization(place or str(folder), find_quantization(found))
    return found


def find_quantization(config: Mapping[str, Any]) -> str:
    """Return how the weights of a model are quantized by its ``config.json``; empty: they are plain."""
    # A model of texts and images has the entry in its text part.
    for part in (config, config.get("text_config")):
        entry = part.get(QUANTIZATION) if isinstance(part, Mapping) else None
        if entry:
            method = entry.get("quant_method") if isinstance(entry, Mapping) else None
            return str(method or "an unknown method")
    return ""


def _check_quantization(place: str, method: str) -> None:
    if method in ("", MXFP4):
        return
    raise BadField(
        FIELD,
        f"{place} has quantized weights: {fold_text(method, 40)}",
        means=f"only plain weights can be trained; of quantized ones a run can restore those in {MXFP4}",
        do="name the same model with plain weights (bfloat16 or float32), from which this one was quantized",
    )


def download_model(name: str) -> Path:
    """Return the folder of ``OWNER/MODEL[@REVISION]`` in the local cache, after a download if needed."""
    with _explain_hub_errors(name):
        from huggingface_hub import snapshot_download

        model, revision = split_revision(name)
        folder = snapshot_download(
            model, allow_patterns=list(DOWNLOADED), ignore_patterns=list(NOT_DOWNLOADED), **revision
        )
        return Path(folder)


def download_config(name: str) -> Path:
    """Return the folder in the local cache that has the configuration of a model of the hub."""
    with _explain_hub_errors(name):
        from huggingface_hub import hf_hub_download

        model, revision = split_revision(name)
        return Path(hf_hub_download(model, CONFIG, **revision)).parent


def split_revision(name: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a model on the hub, and the argument for its revision; none: the newest."""
    model, _, revision = name.partition("@")
    return model, {"revision": revision} if revision else {}


@contextmanager
def _explain_hub_errors(name: str) -> Iterator[None]:
    with require_for_import("recipes", f"the model {name} of the hub needs huggingface_hub"):
        from huggingface_hub import errors
    try:
        yield
    except errors.GatedRepoError as error:
        raise BadField(
            FIELD,
            f"{name} is a gated model",
            means="the hub gives it only to accounts that have accepted its licence",
            do=f"accept the licence on the page of {name}, then log in: hf auth login",
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise BadField(
            FIELD,
            f"the hub has no model {name}",
            means="it does not exist, or your account may not see it",
            do="correct the name; for a private model log in: hf auth login; a folder is written ./FOLDER",
        ) from error
    except errors.RemoteEntryNotFoundError as error:
        raise BadField(
            FIELD,
            f"{name} has no config.json",
            means="the architecture of the model is unknown",
            do="name a model of the hub that transformers can load, not an adapter or a GGUF file",
        ) from error
    except (errors.LocalEntryNotFoundError, errors.HfHubHTTPError, OSError) as error:
        raise BadField(
            FIELD,
            f"the model {name} cannot be downloaded",
            means="the hub cannot be reached, and the model is not in the local cache",
            do="check the network; or copy the model to this machine and write the path of its folder",
        ) from error


def check_pretrained_files(folder: Path) -> None:
    """Check that ``transformers`` knows the model of a folder, and that no file of its weights is cut off."""
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
