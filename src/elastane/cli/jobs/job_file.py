"""A job's file: YAML or JSON, one job spec."""

import os
from pathlib import Path

import msgspec

from elastane.api.document_parser import describe_type
from elastane.api.errors import BadField, BadInput
from elastane.api.job_checks import make_job_document, parse_job_spec
from elastane.api.jobs import JobSpec
from elastane.cli.documents import format_yaml, read_json, read_yaml

SUFFIXES = (".yaml", ".yml", ".json")


def is_job_file(path: Path) -> bool:
    return path.suffix in SUFFIXES


def read_job(path: Path, *, name: str, team: str) -> JobSpec:
    """The job in a file. Its paths begin where the file is, and are absolute afterwards.

    Args:
        path: of the file.
        name: of the job, if the file gives it none.
        team: whose the job is, if the file does not say.

    Raises:
        BadInput: the file cannot be read, or describes no job; with the field and what to write.
    """
    document = {"name": name, "team": team} | _mapping(path)
    try:
        return anchored(parse_job_spec(document), path.absolute().parent)
    except BadField as error:
        raise BadInput(f"{path}: {error.what}", means=error.means, do=error.do) from error


def anchored(spec: JobSpec, folder: Path) -> JobSpec:
    """The same job with absolute paths.

    Args:
        spec: as written.
        folder: absolute; paths begin here, in a command they begin in the working directory.
    """
    working_dir = _below(folder, spec.working_dir) if spec.working_dir else ""
    training, keeping = spec.training, spec.training.checkpoints
    if keeping.url and "://" not in keeping.url:
        keeping = msgspec.structs.replace(keeping, url=_below(folder, keeping.url))
        training = msgspec.structs.replace(training, checkpoints=keeping)
    return msgspec.structs.replace(
        spec,
        script=_below(folder, spec.script) if spec.script else "",
        working_dir=working_dir or (str(folder) if spec.command or spec.module else ""),
        training=training,
    )


def yaml_of(spec: JobSpec) -> str:
    """What `read_job` reads the same job from."""
    return format_yaml(make_job_document(spec))


def _below(folder: Path, path: str) -> str:
    return os.path.normpath(folder / path)


def _mapping(path: Path) -> dict[str, object]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}", do="check the path") from error
    try:
        document = read_json(raw) if path.suffix == ".json" else read_yaml(raw)
    except BadInput as error:
        raise BadInput(f"{path} {error.what}", means=error.means, do=error.do) from error
    if not isinstance(document, dict):
        raise BadInput(
            f"{path} holds no job: it is {describe_type(document)}",
            do="write fields, each with its value: name: train",
        )
    return document
