"""The tokenizer of a recipe and the samples of its data; needs no torch."""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from elastane.common.errors import BadInput
from elastane.common.extras import require_for_import
from elastane.common.field_checks import make_field_error
from elastane.integrations.datasets import TextFiles, TokenFile
from elastane.integrations.datasets.documents import read_documents
from elastane.integrations.datasets.rows import BadRow, read_rows
from elastane.integrations.recipes.data.encoded_samples import open_encoded_samples
from elastane.integrations.recipes.data.files import DataFiles, find_files
from elastane.integrations.recipes.data.held_out import SampleSource, hold_out
from elastane.integrations.recipes.data.sample_file import SampleFile
from elastane.integrations.recipes.data.spec import ROWS, DataSpec, Task, check_data, find_paths
from elastane.integrations.recipes.data.standard_library import write_standard_library
from elastane.integrations.recipes.data.tokenizer import complete_tokenizer, read_tokenizer, train_tokenizer
from elastane.run.nouns.membership import SiteName

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LOOKS = 64
"""The windows of a file that are checked."""


@dataclass(frozen=True)
class DividedSamples:
    """The samples of a recipe.

    Args:
        train: samples for training; a map-style dataset.
        held_out: samples for evaluations; None: the recipe holds none out.
        summary: a sentence with the number of samples, and how many were truncated or dropped.
    """

    train: SampleSource
    held_out: SampleSource | None
    summary: str


def load_tokenizer(spec: DataSpec, task: Task) -> "PreTrainedTokenizerFast":
    """Return the tokenizer of a recipe: from its folder, or else trained on the text of the data.

    Raises:
        BadInput: there is no tokenizer, or no text to train one on.
    """
    with require_for_import("recipes", "a recipe needs transformers"):
        import_module("transformers")
    check_data(spec, task)
    if spec.tokenizer:
        tokenizer = read_tokenizer(spec.tokenizer)
    else:
        files = _find_files(spec, task)
        if files.format == "tokens":
            raise BadInput(
                f"{spec.path} has tokens, and the recipe has no tokenizer",
                means="the model could not be used without the tokenizer that made them",
                do="name the folder of that tokenizer: data.tokenizer",
            )
        tokenizer = train_tokenizer(_read_texts(spec, files, task), spec.vocabulary, files.describe())
    complete_tokenizer(tokenizer, spec, task)
    return tokenizer


def open_samples(
    spec: DataSpec, tokenizer: "PreTrainedTokenizerFast", task: Task, context: int
) -> DividedSamples:
    """Return the samples of a recipe, each with at most ``context`` inputs.

    Every process that opens the same data gets the same samples. The first one writes what must be written,
    into the user's cache, and the others wait for it.

    Raises:
        BadInput: the data cannot be read, or a sample of it is invalid; the error names file and line.
    """
    check_data(spec, task)
    samples = _open_source(spec, _find_files(spec, task), tokenizer, task, context)
    summary = _describe(samples, context)
    if not isinstance(spec.held_out, str):
        return DividedSamples(*hold_out(samples, spec.held_out), summary)
    return DividedSamples(samples, open_held_out(spec, tokenizer, task, context), summary)


def open_held_out(
    spec: DataSpec, tokenizer: "PreTrainedTokenizerFast", task: Task, context: int
) -> SampleSource | None:
    """Return the samples of data that is for evaluations only; None: the recipe names none."""
    if not isinstance(spec.held_out, str):
        return None
    files = find_files(spec, spec.held_out, "data.held_out")
    return _open_source(spec, files, tokenizer, task, context)


def open_site(
    spec: DataSpec, site: SiteName, tokenizer: "PreTrainedTokenizerFast", task: Task, context: int
) -> DividedSamples:
    """Return the samples of a site, all of them for training; see `open_samples`."""
    path = spec.sites[site]
    if not find_paths(path):
        raise make_field_error(f"data.sites.{site}", f"no such file: {path}", "correct the path at this site")
    own = msgspec.structs.replace(spec, path=path, sites={}, held_out=0.0)
    return open_samples(own, tokenizer, task, context)


def _find_files(spec: DataSpec, task: Task) -> DataFiles:
    if spec.path:
        return find_files(spec, spec.path)
    return DataFiles("jsonl", (write_standard_library(task),))


def _open_source(
    spec: DataSpec, files: DataFiles, tokenizer: "PreTrainedTokenizerFast", task: Task, context: int
) -> SampleSource:
    if task != "pretrain":
        if files.format not in ROWS:
            raise BadInput(
                f"{files.files[0]} has {files.format}, without fields",
                means=f"the task {task} needs rows with a prompt and an answer",
                do="write jsonl or parquet, or train on text with the task pretrain",
            )
        return open_encoded_samples(spec, files, tokenizer, task, context)
    if files.format == "tokens":
        return open_token_windows(spec, files, len(tokenizer), context)
    assert isinstance(tokenizer.eos_token_id, int), "load_tokenizer has checked it"
    return TextFiles(
        files.files, tokenizer, context, separator=tokenizer.eos_token_id, field=spec.fields.text
    )


def _read_texts(spec: DataSpec, files: DataFiles, task: Task) -> Iterator[str]:
    """Yield the text of the data, in pieces."""
    for file in files.files:
        if task == "pretrain" or files.format not in ROWS:
            yield from chain.from_iterable(read_documents(file, spec.fields.text))
        else:
            yield from _read_row_texts(file, msgspec.structs.astuple(spec.fields))


def _read_row_texts(file: Path, names: tuple[str, ...]) -> Iterator[str]:
    try:
        for row in read_rows(file, names):
            for name in names:
                yield from _find_texts(row.fields.get(name))
    except BadRow as error:
        raise BadInput(
            f"{file}: {error}", means="its text cannot be read", do="correct the file, or data.fields"
        ) from error


def _find_texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _find_texts(item)
        case {"content": str() as content}:
            yield content
        case _:
            pass


def _describe(samples: SampleSource, context: int) -> str:
    if isinstance(samples, SampleFile):
        return samples.counts.describe()
    return f"{len(samples):,} windows of {context:,} tokens"


def open_token_windows(spec: DataSpec, files: DataFiles, vocabulary: int, context: int) -> SampleSource:
    """Return the windows of all files; no window has tokens of two files."""
    parts = [TokenFile(file, context, dtype=spec.dtype) for file in files.files]
    for part in parts:
        check_token_range(part, vocabulary)
    return parts[0] if len(parts) == 1 else JoinedSamples(parts)


class JoinedSamples:
    """A map-style dataset with the samples of several datasets, one after the other."""

    def __init__(self, parts: Sequence[SampleSource]) -> None:
        self._parts = tuple(parts)
        self._borders = (0, *accumulate(map(len, self._parts)))

    def __len__(self) -> int:
        return self._borders[-1]

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        part = bisect_right(self._borders, index) - 1
        return self._parts[part][index - self._borders[part]]

    def fingerprint(self) -> str:
        """Return a SHA-256 over the fingerprints of all parts."""
        return hashlib.sha256(" ".join(part.fingerprint() for part in self._parts).encode()).hexdigest()


def check_token_range(windows: TokenFile, vocabulary: int) -> None:
    """Check windows that are spread evenly over a file of tokens; the model checks no token."""
    for index in np.unique(np.linspace(0, len(windows) - 1, LOOKS).astype(np.int64)):
        inputs, targets, *_ = windows[int(index)]
        least, most = min(inputs.min(), targets[-1]), max(inputs.max(), targets[-1])
        if least < 0 or most >= vocabulary:
            raise BadInput(
                f"{windows.path} has the token {most if most >= vocabulary else least}",
                means=f"the tokenizer has the tokens 0 to {vocabulary - 1}, so another one made the file, "
                "or its data type is not data.dtype",
                do="name the tokenizer that made the file (data.tokenizer), or correct data.dtype",
            )
