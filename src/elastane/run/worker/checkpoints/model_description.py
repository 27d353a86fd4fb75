"""The description of model and optimizer in a checkpoint, which makes it usable without the script."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import torch
from torch import nn

from elastane.common.errors import BadInput, Damaged, FileDamage
from elastane.common.safe_text import escape_line
from elastane.run.nouns.checkpoints import MANIFEST, Manifest, TensorFacts
from elastane.run.worker.checkpoints.tensor_keys import INNER_STATE, MODEL
from elastane.run.worker.finished.adapters import Adapter
from elastane.run.worker.finished.text_files import read_model_texts
from elastane.run.worker.state.optimizer_shards import ELEMENTWISE
from elastane.run.worker.state.training_state import TrainingState

KEY = "outline"


class ModelDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The names and texts of a model, stored in a manifest's ``plain`` under `KEY`.

    Args:
        names: all names of the model's state dict, in its order.
        carried: the names that training changes: parameters and buffers in the order of the flat state.
        groups: the names of the parameters in each group of the optimizer, in its order, with frozen ones.
        optimizer: the class of the optimizer.
        texts: the configuration files from which other libraries build the model, and those of its tokenizer.
        adapter: for a model with an adapter of ``peft``, each key in the adapter's file with its name,
            without the prefix that ``torch.compile`` adds.
        adapter_problem: why ``adapter`` is empty although the model has an adapter.
    """

    names: tuple[str, ...]
    carried: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]
    optimizer: str
    texts: dict[str, str] = {}
    adapter: dict[str, str] = {}
    adapter_problem: str = ""

    @property
    def trained(self) -> frozenset[str]:
        """The names of the trained parameters."""
        return frozenset(self.carried) & frozenset(name for group in self.groups for name in group)


def describe_model(
    state: TrainingState, adapter: Adapter | None, tokenizer: Mapping[str, bytes] | None = None
) -> ModelDescription:
    """Describe a model in training.

    Args:
        adapter: the adapter of the model, see `describe_adapter`.
        tokenizer: the files of its tokenizer, by name. The description has those in UTF-8, which are all but
            the old binary ones: a ``tokenizer.json`` beside them has the same content.
    """
    names = {parameter: name for name, parameter in state.model.named_parameters()}
    layout = state.layout
    # The optimizer trains the local shards of a divided model.
    own = zip(layout.parameters, layout.extents, strict=True)
    names |= {parameter: extent.name for parameter, extent in own}
    return ModelDescription(
        names=state.list_names(),
        carried=tuple(extent.name for extent in (*layout.extents, *layout.buffer_extents)),
        groups=tuple(
            tuple(names.get(parameter, "") for parameter in group["params"])
            for group in state.optimizer.param_groups
        ),
        optimizer=type(state.optimizer).__name__,
        texts=_decode_texts(read_model_texts(state.model, adapter)) | _decode_texts(tokenizer or {}),
        adapter={} if adapter is None else dict(adapter.names),
        adapter_problem="" if adapter is None else adapter.problem,
    )


def _decode_texts(files: Mapping[str, bytes]) -> dict[str, str]:
    texts = {}
    for name, content in files.items():
        with suppress(UnicodeDecodeError):
            texts[name] = content.decode()
    return texts


def read_model_description(manifest: Manifest) -> ModelDescription:
    """Return the description in a checkpoint.

    Raises:
        BadInput: the checkpoint has no description; another program wrote it.
        Damaged: the description is not valid.
    """
    if KEY not in manifest.plain:
        raise BadInput(
            f"checkpoint {manifest.name} does not name the parameters of its optimizer",
            means="it was not written by a run",
            do="load it with torch.distributed.checkpoint",
        )
    try:
        return msgspec.convert(manifest.plain[KEY], type=ModelDescription)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        why = f"its description of the model cannot be read: {escape_line(str(error))}"
        raise Damaged(manifest.name, (FileDamage(MANIFEST, why),)) from error


class StoredState:
    """The averaged state of a checkpoint, without values; as `averaged_state.AveragedState`."""

    def __init__(self, names: Sequence[str], manifest: Manifest) -> None:
        self.module, self._names = nn.Module(), names
        for number, name in enumerate(names):
            self.module.register_buffer(f"state_{number}", _allocate_like(manifest.tensors[name]))

    def list_buffers(self) -> Iterator[tuple[str, str]]:
        """Yield each buffer with its name, in the order of the run's layout."""
        return ((f"state_{number}", name) for number, name in enumerate(self._names))


def build_stand_in(
    description: ModelDescription, manifest: Manifest
) -> tuple[nn.Module, torch.optim.Optimizer, StoredState]:
    """Build a model and an optimizer with the names and shapes of a checkpoint, without values.

    Neither can compute anything, but a `TrainingState` of them can be restored.
    """
    averaged = [name for name in description.carried if name.startswith(INNER_STATE)]
    model, facts, trained = nn.Module(), manifest.tensors, description.trained
    tensors: dict[str, nn.Parameter] = {}
    carried = frozenset(description.carried)
    for name in description.names:
        if name not in carried:
            continue
        empty = _allocate_like(facts[MODEL + name])
        path, _, last = name.rpartition(".")
        module = _find_module(model, path)
        if name in trained:
            tensors[name] = nn.Parameter(empty)
            module.register_parameter(last, tensors[name])
        else:
            module.register_buffer(last, empty)
    groups = [
        {"params": [tensors[name] for name in group if name in tensors]} for group in description.groups
    ]
    return model, _build_optimizer(description.optimizer, groups), StoredState(averaged, manifest)


def _allocate_like(facts: TensorFacts) -> torch.Tensor:
    return torch.empty_strided(facts.shape, facts.stride, dtype=getattr(torch, facts.dtype))


def _build_optimizer(name: str, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """Build an optimizer of the named class if its state can be cut into blocks, else of any class."""
    for kind in ELEMENTWISE:  # their other arguments have defaults
        if kind.__name__ == name:
            return kind(groups)  # type: ignore[call-arg]
    return torch.optim.Optimizer(groups, {})


def _find_module(model: nn.Module, path: str) -> nn.Module:
    for name in path.split(".") if path else ():
        if name not in model._modules:
            model.add_module(name, nn.Module())
        model = model.get_submodule(name)
    return model
