"""Reading of the model files, and writing of the metrics and the card, of a run that is over."""

from pathlib import Path
from typing import TypeVar

import msgspec

from elastane.common.atomic_file import replace_file
from elastane.common.confined_files import ConfinedDirectory
from elastane.common.errors import BadInput
from elastane.common.untrusted_data import Decoder, Malformed
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.training_environment import TrainingEnvironment
from elastane.run.observability.card import AdapterConfig, FinishedModel, OptimizerGroups, write_card_text
from elastane.run.observability.metrics import compute_metrics
from elastane.run.observability.run_files import Recorded
from elastane.run.observability.tensors import find_finished_model, list_shards

T = TypeVar("T")


class ModelConfig(msgspec.Struct, frozen=True):
    """The used part of a ``config.json``."""

    architectures: tuple[str, ...] = ()


def read_finished(run_dir: RunDir) -> FinishedModel | None:
    """Return the files of the finished model; None before it is written.

    Raises:
        BadInput: one of the files is damaged.
    """
    marker = find_finished_model(run_dir)
    if marker is None:
        return None
    shards = list_shards(run_dir) if marker == run_dir.model_files.weight_index else ()
    adapter = run_dir.root / "adapter_config.json"
    others = (
        run_dir.model_files.optimizer,
        run_dir.model_files.config,
        run_dir.root / "generation_config.json",
        adapter,
        run_dir.root / "adapter_model.safetensors",
        run_dir.model_files.optimizer_groups,
        run_dir.model_files.environment,
    )
    files = [marker, *shards, *others]
    config = decode_file(run_dir.model_files.config, ModelConfig)
    return FinishedModel(
        files=tuple(
            (path.name, size) for path in files if (size := run_dir.files.find_size(path)) is not None
        ),
        architecture=config.architectures[0] if config and config.architectures else None,
        adapter=decode_file(adapter, AdapterConfig),
        optimizer=decode_file(run_dir.model_files.optimizer_groups, OptimizerGroups),
        environment=decode_file(run_dir.model_files.environment, TrainingEnvironment),
    )


def decode_file(path: Path, kind: type[T]) -> T | None:
    try:
        return Decoder[T](kind)(ConfinedDirectory(path.parent).read(path))
    except FileNotFoundError:
        return None
    except (OSError, Malformed) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error


def write_conclusion(run: Recorded) -> RunDir:
    """Write ``metrics.json`` of an ended run, and ``CARD.md`` if it has a model; each atomically.

    Raises:
        BadInput: they cannot be written, or a file of the model is damaged.
    """
    metrics = compute_metrics(run)
    _write_file(run.run_dir.metrics, msgspec.json.format(msgspec.json.encode(metrics), indent=2) + b"\n")
    model = read_finished(run.run_dir)
    if model is not None:
        _write_file(run.run_dir.card, write_card_text(run, metrics, model).encode())
    return run.run_dir


def _write_file(path: Path, content: bytes) -> None:
    try:
        replace_file(path, content, durable=False)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from error
