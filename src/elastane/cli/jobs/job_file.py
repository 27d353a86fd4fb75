"""Job files: one job spec in YAML or JSON."""

import os
from pathlib import Path

import msgspec

from elastane.cluster.nouns.job_checks import CODE_DIGEST, make_job_document, parse_job_spec
from elastane.cluster.nouns.jobs import JobSpec
from elastane.common.document_parser import describe_type
from elastane.common.documents import format_yaml, read_document, read_json, read_yaml
from elastane.common.errors import BadField, BadInput
from elastane.common.safe_text import escape_line

SUFFIXES = (".yaml", ".yml", ".json")


def is_job_file(path: Path) -> bool:
    """Return whether a path names a job file; any other path is a script."""
    return path.suffix in SUFFIXES


def read_job(path: Path, *, name: str, team: str) -> JobSpec:
    """Return the job of a file with absolute paths; its values are not checked yet.

    Relative paths in the file start from the directory of the file. The job has this name and this team if
    the file has none.
    """
    document = {"name": name, "team": team} | _read_mapping(path)
    try:
        return anchor_paths(parse_job_spec(document), path.absolute().parent)
    except BadField as error:
        raise BadInput(f"{path}: {error.what}", means=error.means, do=error.do) from error


def anchor_paths(spec: JobSpec, folder: Path) -> JobSpec:
    """Return a job with absolute paths; relative ones start from a folder, which is absolute.

    A job that brings its code with it has paths in the code instead. Until the code is sent, ``code`` is the
    path of its directory.
    """
    training, checkpoints = spec.training, spec.training.checkpoints
    if checkpoints.url and "://" not in checkpoints.url:
        checkpoints = msgspec.structs.replace(checkpoints, url=_join(folder, checkpoints.url))
        training = msgspec.structs.replace(training, checkpoints=checkpoints)
    if training.origin and "://" not in training.origin:
        training = msgspec.structs.replace(training, origin=_join(folder, training.origin))
    spec = msgspec.structs.replace(spec, training=training)
    if spec.code:
        return spec if CODE_DIGEST.fullmatch(spec.code) else bring_code(spec, Path(_join(folder, spec.code)))
    working_dir = _join(folder, spec.working_dir) if spec.working_dir else ""
    return msgspec.structs.replace(
        spec,
        script=_join(folder, spec.script) if spec.script else "",
        working_dir=working_dir or (str(folder) if spec.command or spec.module else ""),
    )


def bring_code(spec: JobSpec, root: Path) -> JobSpec:
    """Return a job that brings the code of an absolute directory with it; its paths become those in it."""
    return msgspec.structs.replace(
        spec,
        code=str(root),
        script=_find_in_code(root, "script", spec.script),
        working_dir=_find_in_code(root, "workingDir", spec.working_dir),
    )


def find_code_root(spec: JobSpec) -> Path | None:
    """Return the directory of the code that is to be sent; None: the job brings none along."""
    return Path(spec.code) if spec.code and not CODE_DIGEST.fullmatch(spec.code) else None


def _find_in_code(root: Path, field: str, text: str) -> str:
    path = Path(text)
    if not path.is_absolute():
        return text
    if not path.is_relative_to(root):
        path, root = path.resolve(), root.resolve()
    if not path.is_relative_to(root):
        raise BadField(
            field,
            f"{path} is not below {root}, and only the files there are sent with the job",
            means="the machines that train have these files only",
            do="submit from a directory above it, or name that directory as code: in a job file",
        )
    inside = path.relative_to(root)
    return str(inside) if inside.parts else ""


def format_job(spec: JobSpec) -> str:
    """Return a job as YAML for `read_job`."""
    return format_yaml(make_job_document(spec))


def _join(folder: Path, path: str) -> str:
    return os.path.normpath(folder / path)


def _read_mapping(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            raw = read_document(file)
        document = read_json(raw) if path.suffix == ".json" else read_yaml(raw)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}", do="check the path") from error
    except BadInput as error:
        raise BadInput(f"{path} {error.what}", means=error.means, do=error.do) from error
    if not isinstance(document, dict):
        raise BadInput(
            f"{path} is not a job: it is {describe_type(document)}",
            do="write fields, each with its value: name: train",
        )
    if "apiVersion" in document or ("kind" in document and "spec" in document):
        raise BadInput(
            f"{path} is a file for Kubernetes: {_describe_kind(document)}",
            means="a job of Elastane has other fields, and needs no pods",
            do="write name, script, args and elasticPolicy, as docs/concepts/job.md shows; or print a job to "
            "begin with: elastane submit SCRIPT --dry-run",
        )
    return document


def _describe_kind(document: dict[str, object]) -> str:
    """Return the kind of a document of Kubernetes, in words that are safe to show."""
    return escape_line(" ".join(str(document[key]) for key in ("apiVersion", "kind") if key in document), 80)
