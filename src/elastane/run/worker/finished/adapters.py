"""The adapter of a ``peft`` model (LoRA and its relatives), as ``peft``'s ``save_pretrained`` writes it.

Such a model has the names and tensors of the base model in other places, with the adapter's between them. The
configuration of the base model describes neither. The tensors and keys of an adapter's files depend on the
method, so this module asks ``peft`` for them. It does not import ``peft`` before a model needs it.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from elastane.run.worker.finished.configs import CONFIG, encode_config, read_configs
from elastane.run.worker.finished.named_tensors import COMPILED, strip_compiled
from elastane.run.worker.state.tensor_bytes import raw_bytes

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BASE_CONFIG = "base_config.json"
"""The configuration of the base model. Only Elastane reads it: ``from_pretrained`` reads other names."""
PREFIX = "base_model.model."
"""The prefix that ``peft`` adds to the names of the base model."""
WRAPPED = ("base_layer", "original_module", "token_adapter")
"""Attributes of ``peft``'s layers that hold the replaced layer of the base model."""

LAYERS = ("BaseTunerLayer", "AuxiliaryTrainingWrapper", "ModulesToSaveWrapper")
"""Classes of layers that hold a part of an adapter."""
MOST_NAMED = 3


@dataclass(frozen=True)
class Adapter:
    """The content of an adapter's files.

    Args:
        texts: the configurations, by file name.
        names: each key in ``adapter_model.safetensors``, with its name in the model's state dict.
        problem: why the files cannot be written; empty if they can.
    """

    texts: Mapping[str, bytes]
    names: Mapping[str, str]
    problem: str = ""


def describe_adapter(model: nn.Module) -> Adapter | None:
    """Describe the files of a model's adapter; None: the model has no adapter.

    Call this from the training thread: some methods of ``peft`` compute the tensors that they save.
    """
    model = getattr(model, COMPILED, model)
    if "peft" not in sys.modules or not _is_wrapped(model):
        return None
    base = _find_base(model)
    texts = {BASE_CONFIG if name == CONFIG else name: text for name, text in read_configs(base).items()}
    configs: Mapping[str, Any] = getattr(model, "peft_config", {})
    if not _has_adapter(model):
        return Adapter(texts, {}, "its adapter was merged into the base model")
    if len(configs) != 1:
        return Adapter(texts, {}, f"it has {len(configs)} adapters, and such a folder holds one")
    ((label, config),) = configs.items()
    names, unknown = _find_saved_names(model, label, config)
    problem = ""
    if unknown:
        problem = f"peft computes {_join_names(unknown)} when it saves the adapter"
    elif outside := _find_trained_outside(model, set(names.values())):
        problem = f"{_join_names(outside)} was trained too, and is not part of the adapter"
    adapter_config = _encode_config(model, base, config)
    return Adapter(
        texts if problem else {**texts, ADAPTER_CONFIG: adapter_config}, {} if problem else names, problem
    )


def map_base_names(names: Iterable[str]) -> dict[str, str]:
    """Return the base model's names, each with the name that its tensor has in a model with an adapter.

    Args:
        names: all names in the state dict of the model with the adapter.
    """
    names = list(names)
    prefix = next((p for p in (PREFIX, "base_model.") if any(name.startswith(p) for name in names)), "")
    replaced = {path for name in names for path in _find_replaced_layers(name)}
    return {
        _unwrap(name).removeprefix(prefix): name
        for name in names
        if name.startswith(prefix) and not _is_beside_base(name, replaced)
    }


def _find_replaced_layers(name: str) -> Iterable[str]:
    parts = name.split(".")
    return (".".join(parts[:place]) for place, part in enumerate(parts) if part in WRAPPED)


def _is_beside_base(name: str, replaced: set[str]) -> bool:
    """Return whether a tensor belongs to the adapter's part of a replaced layer."""
    parts = name.split(".")
    return any(
        ".".join(parts[:place]) in replaced and parts[place] not in WRAPPED for place in range(1, len(parts))
    )


def _unwrap(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPED)


def _is_wrapped(model: nn.Module) -> bool:
    return _is_a(model, "PeftModel", "PeftMixedModel") or _has_adapter(model)


def _has_adapter(model: nn.Module) -> bool:
    config = getattr(model, "active_peft_config", None) if _is_a(model, "PeftModel") else None
    if getattr(config, "is_prompt_learning", False):
        return True
    return any(_is_a(module, *LAYERS) for module in model.modules())


def _is_a(module: nn.Module, *names: str) -> bool:
    """Return whether a module has one of these ``peft`` classes, in any module that defines them."""
    return any(
        kind.__name__ in names and kind.__module__.startswith("peft.") for kind in type(module).__mro__
    )


def _find_base(model: nn.Module) -> nn.Module:
    find: Callable[[], object] | None = getattr(model, "get_base_model", None)
    base = model if find is None else find()
    return base if isinstance(base, nn.Module) else model


def _find_saved_names(model: nn.Module, label: str, config: Any) -> tuple[dict[str, str], list[str]]:
    """Return the keys that ``peft`` saves, with their names in the model, and the keys without a name."""
    from peft import get_peft_model_state_dict

    entries = model.state_dict()
    names_by_id = {id(tensor): name for name, tensor in entries.items()}
    saved = get_peft_model_state_dict(
        model,
        state_dict=dict(entries),
        adapter_name=label,
        # "auto" would query the hub, which a worker may not be able to reach.
        save_embedding_layers=_has_resized_embeddings(model, config),
    )
    # transformers' add_adapter and inject_adapter_in_model do not change the names of the base model.
    prefix = "" if hasattr(model, "get_base_model") else PREFIX
    names: dict[str, str] = {}
    unknown: list[str] = []
    for key, tensor in saved.items():
        name = names_by_id.get(id(tensor)) or _find_equal_entry(entries, tensor)
        if name is None:
            unknown.append(key)
        else:
            names[prefix + strip_compiled(key)] = strip_compiled(name)
    return names, unknown


def _find_equal_entry(entries: Mapping[str, torch.Tensor], tensor: torch.Tensor) -> str | None:
    """Return the one entry that equals a saved tensor; None: no entry does, or several do."""
    candidates = [n for n, e in entries.items() if e.shape == tensor.shape and e.dtype == tensor.dtype]
    equal = [name for name in candidates if raw_bytes(entries[name]) == raw_bytes(tensor)]
    return equal[0] if len(equal) == 1 else None


def _has_resized_embeddings(model: nn.Module, config: Any) -> bool:
    """Return whether the vocabulary differs from that of the base model that the adapter names."""
    own = getattr(model, "config", None)
    size, name = getattr(own, "vocab_size", None), config.base_model_name_or_path
    if own is None or size is None or not name:
        return False
    try:
        original = type(own).from_pretrained(name, local_files_only=True)
    except (OSError, ValueError):
        return False  # the base model has no name, so there is nothing to compare with
    return bool(original.vocab_size != size)


def _find_trained_outside(model: nn.Module, inside: set[str]) -> list[str]:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    covered = {id(parameter) for name, parameter in parameters.items() if strip_compiled(name) in inside}
    return [name for name, p in parameters.items() if p.requires_grad and id(p) not in covered]


def _encode_config(model: nn.Module, base: nn.Module, config: Any) -> bytes:
    """Return ``adapter_config.json``, with sorted sets, so that equal models give equal bytes."""
    value = {
        key: sorted(entry) if isinstance(entry, set | frozenset) else entry
        for key, entry in config.to_dict().items()
    }
    value["inference_mode"] = True
    value["base_model_name_or_path"] = (
        config.base_model_name_or_path or base.__dict__.get("name_or_path") or None
    )
    if config.task_type is None and hasattr(model, "get_base_model"):
        value["auto_mapping"] = {
            "base_model_class": type(base).__name__,
            "parent_library": type(base).__module__,
        }
    return encode_config(json.loads(json.dumps(value, default=_convert)))


def _convert(value: object) -> object:
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value).removeprefix("torch.")


def _join_names(names: list[str]) -> str:
    others = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {others} more" if others > 0 else "")
