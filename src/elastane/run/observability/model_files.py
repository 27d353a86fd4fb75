"""Verification that the files of a finished model are, to the byte, those that the run wrote."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import xxhash

from elastane.common.confined_files import ConfinedDirectory
from elastane.common.errors import BadInput
from elastane.common.untrusted_data import Malformed
from elastane.run.nouns.checkpoints import WrittenFile
from elastane.run.nouns.records import AGENT, ENDS_WITH_MODEL, SCRIPT, EventLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.coverage import LedgerProblem
from elastane.run.observability.facts import find_outcome_event
from elastane.run.observability.run_files import Recorded
from elastane.run.observability.tensors import ModelTensors, find_finished_model, list_shards

NOT_CHECKED = "the files of the finished model were not checked: "
COORDINATORS = ("coordinator", SCRIPT)
"""Authors of ``run.finished`` events that are written after the model."""


class ModelFiles(msgspec.Struct, frozen=True):
    """The result of verifying the files of a finished model or the artifacts.

    Args:
        intact: number of files that are as the run wrote them.
        remarks: parts that could not be checked, in words.
    """

    intact: int = 0
    problems: tuple[LedgerProblem, ...] = ()
    remarks: tuple[str, ...] = ()


def check_model(run: Recorded) -> ModelFiles:
    """Compare every file of the finished model with the checksum that the run recorded at its end.

    Raises:
        BadInput: an existing file cannot be read.
    """
    event = find_outcome_event(run.events)
    model = find_finished_model(run.run_dir)
    if event is None or event.kind not in ENDS_WITH_MODEL:
        # An earlier attempt wrote the model; the current one may have begun to replace it.
        why = f"{NOT_CHECKED}the run has not ended since they were written"
        return ModelFiles(remarks=(why,) if model is not None else ())
    if not event.files:
        return check_unrecorded_model(run, event, model)
    found = {
        name: measure_file(run.run_dir.files, run.run_dir.root / name)
        for name in event.files
        if is_plain_name(name)
    }
    problems = [
        *find_file_problems(event.files, found),
        *(
            LedgerProblem("model", f"{name} was not written by this run")
            for name in list_weight_files(run.run_dir)
            if name not in event.files
        ),
    ]
    if run.record.spec.save_optimizer and run.run_dir.model_files.optimizer.name not in event.files:
        text = f"--save-optimizer was given, but the run recorded no {run.run_dir.model_files.optimizer.name}"
        problems.append(LedgerProblem("model", text))
    intact = sum(found.get(name) == written for name, written in event.files.items())
    return ModelFiles(intact, tuple(problems))


def check_unrecorded_model(run: Recorded, event: EventLine, model: Path | None) -> ModelFiles:
    """Find the missing files of a model without recorded checksums."""
    killed = event.who == AGENT
    why = (
        "the run was killed before it recorded their checksums"
        if killed
        else "the version that made this run recorded no checksums"
    )
    problems: list[LedgerProblem] = []
    if model is not None:
        try:
            ModelTensors(model)
        except BadInput as error:
            problems.append(LedgerProblem("model", str(error)))
    elif event.kind == "run.finished" and event.who in COORDINATORS:
        problems.append(
            LedgerProblem("model", f"the run finished, but {run.run_dir.model_files.weights.name} is missing")
        )
    return ModelFiles(problems=tuple(problems), remarks=(NOT_CHECKED + why,))


def find_file_problems(
    recorded: Mapping[str, WrittenFile], found: Mapping[str, WrittenFile | None]
) -> Iterable[LedgerProblem]:
    """Compare the recorded files with the existing ones. Pure.

    Args:
        recorded: size and checksum of each recorded file, by name.
        found: those of the existing files; None: the file is missing. Names that no file can have are left
            out.
    """
    for name, written in recorded.items():
        if name not in found:
            yield LedgerProblem("model", f"the event names {name!r}, which cannot be a file of the run")
            continue
        now = found[name]
        if now is None:
            yield LedgerProblem("model", f"{name} is missing; the run wrote {written.bytes:,} bytes")
        elif now.bytes != written.bytes:
            text = f"{name} has {now.bytes:,} bytes; the run wrote {written.bytes:,}"
            yield LedgerProblem("model", text)
        elif now.checksum != written.checksum:
            text = (
                f"{name} is not the file that the run wrote: XXH3-128 {now.checksum}, not {written.checksum}"
            )
            yield LedgerProblem("model", text)


def is_plain_name(name: str) -> bool:
    """Return whether a name is that of a file in the run directory itself."""
    return name not in {"", ".", ".."} and Path(name).name == name


def list_weight_files(run_dir: RunDir) -> list[str]:
    """Return the names of the existing files that readers would take for the model or its optimizer."""
    others = (
        path.name
        for path in (
            run_dir.model_files.weights,
            run_dir.model_files.weight_index,
            run_dir.model_files.optimizer,
        )
        if path.exists()
    )
    return [*others, *(path.name for path in list_shards(run_dir))]


def measure_file(files: ConfinedDirectory, path: Path) -> WrittenFile | None:
    """Return size and checksum of a file below a run directory; None if it does not exist.

    Raises:
        BadInput: it cannot be read.
    """
    try:
        with files.open(path) as file:
            checksum = hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
            return WrittenFile(os.fstat(file.fileno()).st_size, checksum)
    except FileNotFoundError:
        return None
    except (OSError, Malformed) as error:
        raise BadInput(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from error
