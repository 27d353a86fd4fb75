"""The ``data`` section of a recipe, and the checks that need neither torch nor the data's content."""

from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from elastane.common.errors import BadField
from elastane.common.field_checks import make_field_error

Task: TypeAlias = Literal["pretrain", "finetune", "preference"]
Format: TypeAlias = Literal["auto", "text", "jsonl", "parquet", "tokens", "datasets"]
LEAST_VOCABULARY, MOST_VOCABULARY = 259, 1 << 20
"""Bounds of a trained vocabulary. The least one has the 256 bytes and the special tokens."""
ROWS = ("jsonl", "parquet", "datasets")
"""The formats with named fields."""


class FieldNames(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The names of the fields of a row.

    Args:
        text: a document, for pretraining.
        messages: a conversation: a list of ``{"role": ..., "content": ...}``.
        prompt: what precedes the completion, or the two answers of a preference pair.
        completion: what the model learns to write after the prompt.
        chosen: the better answer of a preference pair.
        rejected: the worse one.
        tools: the tools of a conversation, which its chat template describes to the model.
    """

    text: str = "text"
    messages: str = "messages"
    prompt: str = "prompt"
    completion: str = "completion"
    chosen: str = "chosen"
    rejected: str = "rejected"
    tools: str = "tools"


class DataSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The data and the tokenizer of a recipe.

    Args:
        path: a file, a pattern such as ``data/*.jsonl``, a folder of files, or a folder of Hugging Face
            `datasets`; empty: the text of Python's standard library.
        format: ``auto`` decides by the suffix of the files.
        sites: the data of each site, in place of ``path``: a path as there, which is read at that site only.
        fields: the names of the fields of rows.
        split: the part of a `datasets` folder that has several.
        dtype: the type of raw tokens; ``.npy`` files have their own.
        held_out: the fraction of the samples that is kept for evaluations, spread evenly over the data, or
            the path of other data for evaluations; 0: no evaluation.
        too_long: what happens to a sample that is longer than the context: ``truncate`` it, ``drop`` it, or
            ``refuse`` the data. The run counts what it truncates and drops.
        tokenizer: a folder with a ``tokenizer.json``; empty: train a tokenizer on the text of the data.
        vocabulary: the number of tokens of a trained tokenizer.
        chat_template: a file with a Jinja template for conversations; empty: the tokenizer's own, or else a
            simple one.
    """

    path: str = ""
    sites: dict[str, str] = {}
    format: Format = "auto"
    fields: FieldNames = FieldNames()
    split: str = "train"
    dtype: Literal["uint16", "uint32", "int32", "int64"] = "uint16"
    held_out: float | str = 0.02
    too_long: Literal["truncate", "drop", "refuse"] = "truncate"
    tokenizer: str = ""
    vocabulary: int = 4096
    chat_template: str = ""


def check_data(spec: DataSpec, task: Task) -> None:
    """Check what can be checked of the data before a run starts: values, paths, and the tokenizer's folder.

    Raises:
        BadField: a value is invalid, or a path leads nowhere; the field is named as in the recipe.
    """
    for field, path in (("data.path", spec.path), ("data.held_out", spec.held_out)):
        if isinstance(path, str) and path and not find_paths(path):
            raise make_field_error(
                field, f"no such file: {path}", "correct the path, or leave it empty for Python's own library"
            )
    if isinstance(spec.held_out, float | int) and not 0 <= spec.held_out < 1:
        raise make_field_error(
            "data.held_out",
            f"{spec.held_out:g} is not a fraction",
            "write 0 to 0.5, or the path of other data",
        )
    if spec.format == "tokens" and task != "pretrain":
        raise make_field_error(
            "data.format",
            f"tokens cannot be the data of the task {task}, which needs rows with fields",
            f"write {', '.join(ROWS[:-1])} or {ROWS[-1]}",
        )
    if spec.tokenizer:
        check_tokenizer_folder(spec.tokenizer)
    elif not LEAST_VOCABULARY <= spec.vocabulary <= MOST_VOCABULARY:
        raise make_field_error(
            "data.vocabulary",
            f"{spec.vocabulary} is not a possible number of tokens",
            f"write {LEAST_VOCABULARY} to {MOST_VOCABULARY}",
        )
    if spec.chat_template and not Path(spec.chat_template).is_file():
        raise make_field_error(
            "data.chat_template", f"no such file: {spec.chat_template}", "correct the path of the template"
        )


def find_paths(path: str) -> list[Path]:
    """Return the files or folders that a path or pattern names, in order; empty: it leads nowhere."""
    place = Path(path).expanduser()
    if place.exists():
        return [place]
    return sorted(place.parent.glob(place.name)) if any(mark in place.name for mark in "*?[") else []


def check_tokenizer_folder(path: str) -> None:
    """Check that a folder has a tokenizer."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise BadField(
            "data.tokenizer",
            f"no such folder: {path}",
            means="a recipe reads its tokenizer from a folder on this machine, and downloads nothing",
            do="write the path of a folder with a tokenizer.json, or leave it empty to train a tokenizer",
        )
    if not (folder / "tokenizer.json").is_file():
        raise BadField(
            "data.tokenizer",
            f"{path} has no tokenizer.json",
            means="the text cannot be turned into tokens",
            do="write the folder that tokenizer.save_pretrained(...) wrote",
        )
