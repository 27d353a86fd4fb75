"""``python -m elastane.run.worker.export``: write a finished run or a checkpoint in a format of other tools.

It is a separate process, because only this package has torch. It prints one line of JSON,
`elastane.run.nouns.torch_answers`.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from elastane.common.atomic_file import open_new_directory
from elastane.common.confined_files import ConfinedDirectory
from elastane.common.errors import BadInput
from elastane.common.untrusted_data import Malformed, decode_object
from elastane.run.checkpoints.catalog import Catalog
from elastane.run.checkpoints.storage.copies import check_is_empty, upload_files
from elastane.run.checkpoints.storage.local import LocalStorage
from elastane.run.checkpoints.storage.urls import open_storage
from elastane.run.nouns.checkpoints import METADATA
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import MAX_SHARD_BYTES
from elastane.run.nouns.torch_answers import ExportedModel, print_answer
from elastane.run.observability.run_files import read_record
from elastane.run.worker.checkpoints.checkpoint_export import read_trained_model
from elastane.run.worker.checkpoints.reader import CheckpointReader
from elastane.run.worker.finished.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS, BASE_CONFIG
from elastane.run.worker.finished.configs import CONFIG, replace_dtype
from elastane.run.worker.finished.formats import FORMATS, TrainedModel
from elastane.run.worker.finished.named_tensors import ConvertedTensors
from elastane.run.worker.finished.optimizer_state import OptimizerState, decode_optimizer_state
from elastane.run.worker.finished.readback import CHECKS
from elastane.run.worker.finished.stored_tensors import StoredTensors, open_stored_model
from elastane.run.worker.finished.text_files import PROBLEM, TEXTS, TOKENIZER_FILES

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
LAST = frozenset({CONFIG, ADAPTER_CONFIG, METADATA})
"""The files of an export without which no program loads the others: they are uploaded last."""


def read_finished_run(files: RunDir, *, optimizer: bool) -> TrainedModel:
    """Return the trained model that a run has written.

    Args:
        optimizer: include the state of its optimizer.

    Raises:
        BadInput: the run has no finished model, or has not saved the optimizer's state.
    """
    model = open_stored_model(files.root)
    if model is None:
        raise BadInput(
            f"{files.root} holds no finished model",
            means="a run writes its model when it finishes or is stopped; this run has not done so yet",
            do="export the model from a checkpoint of the run: elastane checkpoint export",
        )
    record = read_record(files)
    names = (*TEXTS, *TOKENIZER_FILES)
    texts = {name: _read_text(files.root / name) for name in names if (files.root / name).is_file()}
    if files.card.is_file():
        # Model hubs look for this name.
        texts["README.md"] = _read_text(files.card)
    adapter = files.root / ADAPTER_WEIGHTS
    return TrainedModel(
        model=model,
        max_shard_bytes=record.spec.max_shard_bytes,
        optimizer=_read_optimizer(files) if optimizer else None,
        texts=texts,
        adapter=StoredTensors([adapter]) if adapter.is_file() else None,
        adapter_problem=model.metadata.get(PROBLEM, ""),
    )


def _read_text(path: Path) -> bytes:
    """Return the content of a file that the export copies unchanged.

    Raises:
        BadInput: the path is a link or not a file, or a .json file without a JSON object.
    """
    try:
        text = ConfinedDirectory(path.parent).read(path)
        if path.suffix == ".json":
            decode_object(text)
    except (OSError, Malformed) as error:
        raise BadInput(
            f"{path} cannot be exported: {error}",
            means="the run wrote it beside the model, and it has changed since",
            do="restore the file, or export the model from a checkpoint: elastane checkpoint export",
        ) from error
    return text


def _read_optimizer(files: RunDir) -> OptimizerState:
    if not files.model_files.optimizer.is_file():
        raise BadInput(
            f"{files.root} holds no optimizer.safetensors",
            means="the run was not asked to save the optimizer's state at its end",
            do="export it from a checkpoint (elastane checkpoint export), or train with --save-optimizer",
        )
    stored = StoredTensors([files.model_files.optimizer])
    return decode_optimizer_state(stored, stored.metadata)


def convert(trained_model: TrainedModel, dtype: torch.dtype) -> TrainedModel:
    """Return the same model in another floating-point type; the optimizer's state keeps its own."""
    texts = {
        name: replace_dtype(text, dtype) if name in {CONFIG, BASE_CONFIG} else text
        for name, text in trained_model.texts.items()
    }
    adapter = None if trained_model.adapter is None else ConvertedTensors(trained_model.adapter, dtype)
    model = ConvertedTensors(trained_model.model, dtype)
    return replace(trained_model, model=model, texts=texts, adapter=adapter)


def export_model(trained_model: TrainedModel, kind: str, out: Path) -> ExportedModel:
    """Write an export folder, completely or not at all.

    Args:
        trained_model: the model to write.
        kind: one of `FORMATS`.
        out: the folder; it may exist only if it is empty.

    Raises:
        BadInput: the folder is not empty or cannot be written, or the model does not fit the format.
        ReadbackFailed: another tool would not load the same model from the folder.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(
            f"{out} exists already",
            means="an export is written to a new or an empty folder, so nothing was written",
            do="choose another --out, or remove it",
        )
    try:
        with open_new_directory(out, durable=True) as partial:
            FORMATS[kind](trained_model, partial)
            checked = CHECKS[kind](trained_model, partial)
    except OSError as error:
        raise BadInput(
            f"cannot write {out}: {error.strerror or error}",
            means="nothing was exported; the trained model is unchanged",
            do="choose another --out, or correct the error and export again",
        ) from error
    sizes = {
        str(path.relative_to(out)): path.stat().st_size for path in sorted(out.rglob("*")) if path.is_file()
    }
    return ExportedModel(out=str(out), files=sizes, checked=checked)


def export_to_store(trained_model: TrainedModel, kind: str, url: str) -> ExportedModel:
    """Write an export below a URL, from a temporary folder in which it was checked.

    Raises:
        BadInput: something is stored there already; or as `export_model`.
        ReadbackFailed: as `export_model`.
        StorageError: the store refuses a file; those that were uploaded are deleted.
    """
    store = open_storage(url)
    check_is_empty(store)
    with tempfile.TemporaryDirectory(prefix="elastane-export-") as folder:
        export = export_model(trained_model, kind, Path(folder) / kind)
        names = sorted(export.files, key=lambda name: (name in LAST, name))
        uploaded = upload_files(LocalStorage(export.out), names, store)
    sizes = {name: file.bytes for name, file in uploaded.items()}
    return ExportedModel(
        out=store.url,
        files=sizes,
        checked=(*export.checked, "read back from the store: every file has the same bytes"),
    )


@contextmanager
def open_source(options: argparse.Namespace) -> Iterator[TrainedModel]:
    """Yield the model that the options name; it is open within the context.

    Raises:
        BadInput: the run or the checkpoint does not exist.
        StorageError: the checkpoint cannot be read.
    """
    if options.checkpoint is None:
        yield read_finished_run(RunDir(options.run_dir), optimizer=options.optimizer)
        return
    catalog = Catalog(open_storage(options.checkpoints))
    manifest = catalog.load_manifest(options.checkpoint)
    with CheckpointReader(catalog.storage, manifest) as reader:
        yield read_trained_model(
            reader, manifest, max_shard_bytes=options.max_shard_bytes, optimizer=options.optimizer
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m elastane.run.worker.export")
    parser.add_argument("--run-dir", type=Path, help="the finished model of this run")
    parser.add_argument("--checkpoints", help="or, below this path or URL,")
    parser.add_argument("--checkpoint", help="the checkpoint of this name")
    parser.add_argument("--format", choices=sorted(FORMATS), required=True)
    parser.add_argument("--out", required=True, help="a folder, or a URL")
    parser.add_argument("--dtype", choices=sorted(DTYPES))
    parser.add_argument("--optimizer", action="store_true")
    parser.add_argument("--max-shard-bytes", type=int, default=MAX_SHARD_BYTES)
    options = parser.parse_args()

    def export_requested() -> ExportedModel:
        with open_source(options) as trained_model:
            dtype = options.dtype
            exported = trained_model if dtype is None else convert(trained_model, DTYPES[dtype])
            if "://" in options.out:
                return export_to_store(exported, options.format, options.out)
            return export_model(exported, options.format, Path(options.out))

    return print_answer(export_requested)


if __name__ == "__main__":
    sys.exit(main())
