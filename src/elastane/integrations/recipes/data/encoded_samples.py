"""Rows that are encoded once, into a cached sample file, for which all other processes wait."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from elastane.common.atomic_file import open_new_directory
from elastane.common.errors import BadInput
from elastane.common.user_cache import find_cache, lock_for_one
from elastane.integrations.datasets.rows import BadRow, read_rows
from elastane.integrations.datasets.tokenizers import digest_tokenizer
from elastane.integrations.recipes.data.conversation import DATE, TokenSequence
from elastane.integrations.recipes.data.files import DataFiles
from elastane.integrations.recipes.data.messages import BadSample
from elastane.integrations.recipes.data.sample_file import (
    SampleCounts,
    SampleFile,
    write_counts,
    write_samples,
)
from elastane.integrations.recipes.data.samples import encode_sample
from elastane.integrations.recipes.data.spec import DataSpec, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

FORMAT = 2


def open_encoded_samples(
    spec: DataSpec, files: DataFiles, tokenizer: "PreTrainedTokenizerFast", task: Task, context: int
) -> SampleFile:
    """Return the samples of files for fine-tuning or preferences, from the cache if it has them.

    A key of everything that decides the samples names them: the content of the files, the tokenizer with its
    chat template, the task, the context and the settings.

    Raises:
        BadInput: a row is not a sample, or there is none.
    """
    folder = find_cache("recipes")
    folder.mkdir(parents=True, exist_ok=True)
    settings = msgspec.json.encode((FORMAT, DATE, task, context, spec.too_long, spec.fields)).decode()
    template = str(tokenizer.chat_template)
    ends = (tokenizer.bos_token_id, tokenizer.eos_token_id)
    key = f"{settings} {digest_tokenizer(tokenizer)} {template} {ends} {files.digest(folder)}"
    path = folder / f"samples-{hashlib.sha256(key.encode()).hexdigest()}"
    with lock_for_one(path.with_suffix(".lock")):
        if not path.exists():
            with open_new_directory(path, durable=True) as partial:
                _write(partial, _SampleReader(spec, files, tokenizer, task, context))
    return SampleFile(path)


def _write(folder: Path, reader: "_SampleReader") -> None:
    samples = write_samples(folder, reader)
    if not samples:
        first = reader.files.files[0]
        left = (
            f"{reader.dropped:,} rows are longer than {reader.context:,} tokens"
            if reader.dropped
            else "no row"
        )
        raise BadInput(
            f"{first} has no sample: {left}",
            means="there is nothing to train on",
            do="check data.path, or train with a larger context",
        )
    write_counts(folder, SampleCounts(samples, reader.truncated, reader.dropped, reader.context))


class _SampleReader:
    """Yields the samples of files, and counts those that are too long.

    Attributes:
        truncated: samples that were cut to the context.
        dropped: samples that were left out.
    """

    def __init__(
        self, spec: DataSpec, files: DataFiles, tokenizer: "PreTrainedTokenizerFast", task: Task, context: int
    ) -> None:
        self.files, self.context = files, context
        self._spec, self._tokenizer, self._task = spec, tokenizer, task
        self.truncated = self.dropped = 0

    def __iter__(self) -> Iterator[tuple[TokenSequence, ...]]:
        for file in self.files.files:
            yield from self._read_file(file)

    def _read_file(self, file: Path) -> Iterator[tuple[TokenSequence, ...]]:
        place = ""
        try:
            for row in read_rows(file, msgspec.structs.astuple(self._spec.fields)):
                place = f"{row.place}: "
                sample = encode_sample(self._tokenizer, self._task, self._spec.fields, row.fields)
                fitting = self._fit(sample)
                if fitting is not None:
                    yield fitting
        except BadRow as error:
            raise _build_bad_row_error(file, str(error)) from error
        except BadSample as error:
            raise _build_bad_row_error(file, f"{place}{error}") from error

    def _fit(self, sample: tuple[TokenSequence, ...]) -> tuple[TokenSequence, ...] | None:
        """Return the sample, cut to the context if it is longer; None: it is dropped."""
        # The last token is only a target.
        longest = self.context + 1
        length = max(len(sequence.tokens) for sequence in sample)
        if length <= longest:
            return sample
        if self._spec.too_long == "drop":
            self.dropped += 1
            return None
        cut = tuple(sequence.cut(longest) for sequence in sample)
        if self._spec.too_long == "truncate" and all(sequence.targets for sequence in cut):
            self.truncated += 1
            return cut
        means = "" if self._spec.too_long == "refuse" else ", and its answer begins after them"
        raise BadSample(
            f"it has {length - 1:,} tokens, more than the context of {self.context:,}{means}; "
            "write data.too_long: drop, or train with a larger context"
        )


def _build_bad_row_error(file: Path, why: str) -> BadInput:
    return BadInput(
        f"{file}: {why}",
        means="the row cannot be a sample of this task, and nothing was trained",
        do="correct the row, or name its fields: data.fields.messages, data.fields.prompt, ...",
    )
