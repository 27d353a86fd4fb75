"""Checks of an export with the libraries of its users, before the export is reported.

The checks compare the tensors bit for bit with those of the model. If ``transformers`` and ``peft`` are
installed, their ``from_pretrained`` must find all tensors.
"""

import importlib
import importlib.util
import json
import os
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint

from elastane.common.errors import ElastaneError
from elastane.common.exit_codes import ExitCode
from elastane.common.safe_text import escape_line
from elastane.run.worker.finished.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS, BASE_CONFIG, PREFIX
from elastane.run.worker.finished.configs import CONFIG
from elastane.run.worker.finished.formats import TrainedModel, select_exported
from elastane.run.worker.finished.named_tensors import NamedTensors
from elastane.run.worker.finished.stored_tensors import StoredTensors, open_stored_model
from elastane.run.worker.state.tensor_bytes import raw_bytes

OTHER_FORMATS = "use --format torch or dcp, which hold every tensor under its name in the model"
Findings = tuple[str, ...]
"""The results of checks, as sentences."""


class ReadbackFailed(ElastaneError):
    """An export differs from the model."""

    exit_code = ExitCode.FAILED

    def __init__(self, what: str, *, do: str = "check the disk, and export again") -> None:
        super().__init__(
            f"the export does not hold the trained model: {what}",
            means="it would load as another model, so it was removed",
            do=do,
        )


def check_torch(trained: TrainedModel, folder: Path) -> Findings:
    """Compare the tensors that ``torch.load`` reads with the model.

    Raises:
        ReadbackFailed: a tensor or a value differs.
    """
    read = torch.load(folder / "model.pt", weights_only=True, mmap=True)
    names = _map_names(trained.model)
    _compare("model.pt", {name: trained.model.read_tensor(old) for name, old in names.items()}, read)
    _check_optimizer_file(trained, folder)
    return ("read back with torch.load: every tensor is the trained one",)


def check_dcp(trained: TrainedModel, folder: Path) -> Findings:
    """Compare the tensors that ``torch.distributed.checkpoint`` reads with the model, one at a time.

    Raises:
        ReadbackFailed: a tensor differs or is missing.
    """
    stored = set(FileSystemReader(folder).read_metadata().state_dict_metadata)
    names = _map_names(trained.model)
    expected: dict[str, Callable[[], Any]] = {
        f"model.{name}": partial(trained.model.read_tensor, old) for name, old in names.items()
    }
    if trained.optimizer is not None:
        for name, value in trained.optimizer.build_flat_state().items():
            expected[f"optimizer.{name}"] = partial(_return_value, value)
    # Torch flattens groups and lists further; for values other than tensors the presence is enough.
    missing = [
        name for name in expected if not any(key == name or key.startswith(f"{name}.") for key in stored)
    ]
    if missing:
        raise ReadbackFailed(f"{missing[0]} is missing")
    for name, read_value in expected.items():
        value = read_value()
        if isinstance(value, torch.Tensor):
            part, _, key = name.partition(".")
            read = {part: {key: torch.empty_like(value)}}
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="torch.distributed is disabled")
                load_checkpoint(read, checkpoint_id=folder, no_dist=True)
            _compare_tensor(name, value, read[part][key])
    return ("read back with torch.distributed.checkpoint: every tensor is the trained one",)


def check_hf(trained: TrainedModel, folder: Path) -> Findings:
    """Compare the tensors that ``safetensors`` reads with the model, then load it with its library.

    The library is ``transformers`` or ``peft``.

    Raises:
        ReadbackFailed: a tensor differs, or a library does not find every tensor.
    """
    exported = select_exported(trained)
    if exported.model.descriptions:
        _check_stored("the weights", exported.model, open_stored_model(folder))
    if exported.adapter is not None:
        _check_stored(ADAPTER_WEIGHTS, exported.adapter, StoredTensors([folder / ADAPTER_WEIGHTS]))
    _check_optimizer_file(exported, folder)
    findings = ["read back with safetensors: every tensor is the trained one"]
    if exported.model.descriptions:
        findings.append(_load_with_transformers(exported, folder))
    if exported.adapter is not None:
        findings.append(_load_with_peft(trained, folder))
        if not exported.model.descriptions:
            base = json.loads(exported.texts[ADAPTER_CONFIG]).get("base_model_name_or_path")
            findings.append(
                f"it is an adapter of {base or 'a base model without a name'}, which is not included"
            )
    return tuple(findings)


CHECKS: dict[str, Callable[[TrainedModel, Path], Findings]] = {
    "hf": check_hf,
    "dcp": check_dcp,
    "torch": check_torch,
}


def _return_value(value: object) -> object:
    return value


def _map_names(tensors: NamedTensors) -> dict[str, str]:
    return {name: name for name in tensors.descriptions} | dict(tensors.aliases)


def _check_stored(what: str, expected: NamedTensors, found: StoredTensors | None) -> None:
    if found is None:
        raise ReadbackFailed(f"{what}: the file is missing")
    if found.descriptions != dict(expected.descriptions):
        differing = {*found.descriptions.items()} ^ {*expected.descriptions.items()}
        raise ReadbackFailed(
            f"{what}: {min(name for name, _ in differing)} has another shape or type, or is missing"
        )
    for name in expected.descriptions:
        _compare_tensor(name, expected.read_tensor(name), found.read_tensor(name))


def _check_optimizer_file(trained: TrainedModel, folder: Path) -> None:
    if trained.optimizer is None:
        return
    expected = trained.optimizer.build_torch_state()
    read = torch.load(folder / "optimizer.pt", weights_only=True, mmap=True)
    if read["param_groups"] != expected["param_groups"]:
        raise ReadbackFailed("optimizer.pt has other parameter groups")
    _compare("optimizer.pt", _flatten(expected["state"]), _flatten(read["state"]))


def _flatten(state: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{number}.{key}": value for number, entries in state.items() for key, value in entries.items()}


def _compare(what: str, expected: Mapping[str, Any], read: Mapping[str, Any]) -> None:
    if expected.keys() != read.keys():
        raise ReadbackFailed(
            f"{what}: {min(expected.keys() ^ read.keys())} is missing, or should not be there"
        )
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            _compare_tensor(name, value, read[name])
        elif value != read[name]:
            raise ReadbackFailed(f"{what}: {name} is {read[name]!r} instead of {value!r}")


def _compare_tensor(name: str, expected: torch.Tensor, read: torch.Tensor) -> None:
    if (expected.dtype, expected.shape) != (read.dtype, read.shape):
        raise ReadbackFailed(
            f"{name} is {read.dtype} {tuple(read.shape)}, not {expected.dtype} {tuple(expected.shape)}"
        )
    if raw_bytes(expected) != raw_bytes(read):
        raise ReadbackFailed(f"{name} has other values")


def _load_with_transformers(exported: TrainedModel, folder: Path) -> str:
    """Load the weights with ``from_pretrained``.

    Raises:
        ReadbackFailed: the call fails, or it adds or drops tensors.
    """
    name, kind = _find_class(exported.texts[CONFIG])
    if kind is None:
        return f"not loaded with transformers: it is not installed here, or {name} is not one of its classes"
    config = kind.config_class.from_pretrained(folder)
    options: dict[str, Any] = {"dtype": "auto", "output_loading_info": True}
    if exported.adapter is not None:
        # By the folder's name it would also load the adapter, which `peft` must load.
        load = partial(kind.from_pretrained, None, config=config, state_dict=_read_tensors(folder), **options)
    else:
        load = partial(kind.from_pretrained, folder, local_files_only=True, **options)
        if importlib.util.find_spec("accelerate") is not None:
            # Only names, shapes and types: the values have been compared already.
            load = partial(load, device_map="meta")
    if "device_map" not in load.keywords and _count_bytes(exported.model) > _count_free_bytes() // 2:
        return "not loaded with transformers: a model of this size needs accelerate to be installed for that"
    _, report = _call_library(load, f"{name}.from_pretrained")
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if found := report.get(problem):
            first = min(map(str, found))
            raise ReadbackFailed(
                f"{name}.from_pretrained reports {len(found)} {problem}, such as {first}", do=OTHER_FORMATS
            )
    return f"{name}.from_pretrained finds every tensor"


def _load_with_peft(trained: TrainedModel, folder: Path) -> str:
    """Compare the tensors of the adapter with those that ``peft`` expects.

    Raises:
        ReadbackFailed: the folder has other tensors.
    """
    if BASE_CONFIG not in trained.texts:
        return "not loaded with peft: the base model is not one of transformers'"
    name, kind = _find_class(trained.texts[BASE_CONFIG])
    if kind is None or importlib.util.find_spec("peft") is None:
        return f"not loaded with peft: it or {name} is not installed here"
    expected, base = _call_library(partial(_build_adapter, kind, trained.texts[BASE_CONFIG], folder), "peft")
    stored = StoredTensors([folder / ADAPTER_WEIGHTS]).descriptions
    shapes = {key: description.shape for key, description in stored.items()}
    # An adapter may include layers of the base model, such as resized embeddings.
    wrong = {key for key, shape in shapes.items() if shape != expected.get(key, base.get(key))}
    wrong |= expected.keys() - shapes.keys()
    if wrong:
        what = f"peft misses {min(wrong)}, does not expect it, or expects another shape"
        raise ReadbackFailed(what, do=OTHER_FORMATS)
    return "peft finds every tensor of the adapter"


Shapes = dict[str, tuple[int, ...]]


def _build_adapter(kind: Any, config_text: bytes, folder: Path) -> tuple[Shapes, Shapes]:
    """Return the tensors of an adapter and those of its base model, without values."""
    from peft import PeftConfig, get_peft_model, get_peft_model_state_dict

    adapter = PeftConfig.from_pretrained(str(folder))
    if hasattr(adapter, "init_lora_weights"):
        # Other initialisations compute it from the values of the base model.
        adapter.init_lora_weights = True
    with torch.device("meta"):
        base = kind(kind.config_class.from_dict(json.loads(config_text)))
        base_shapes = {f"{PREFIX}{name}": tuple(tensor.shape) for name, tensor in base.state_dict().items()}
        model = get_peft_model(base, adapter)
        saved = get_peft_model_state_dict(model, save_embedding_layers=False)
    return {name: tuple(tensor.shape) for name, tensor in saved.items()}, base_shapes


def _find_class(config_text: bytes) -> tuple[str, Any]:
    """Return the name of a configuration's class, and the class; None: this process cannot import it."""
    name = next(iter(json.loads(config_text).get("architectures") or ()), "")
    if importlib.util.find_spec("transformers") is None:
        return name, None
    transformers = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return name, getattr(transformers, name, None)


def _call_library(load: Callable[[], Any], what: str) -> Any:
    """Load the export with a library; a user would get the same error.

    Raises:
        ReadbackFailed: the library raised an error.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return load()
    except Exception as error:
        why = f"{what} fails: {type(error).__name__}: {escape_line(str(error), 300)}"
        raise ReadbackFailed(why, do=OTHER_FORMATS) from error


def _read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    stored = open_stored_model(folder)
    return {} if stored is None else {name: stored.read_tensor(name) for name in stored.descriptions}


def _count_bytes(tensors: NamedTensors) -> int:
    return sum(described.size_bytes for described in tensors.descriptions.values())


def _count_free_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
