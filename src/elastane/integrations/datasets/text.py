"""Text files that are tokenised once, into a cached token file."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from elastane.common.atomic_file import open_replacement, remove_partials
from elastane.common.errors import BadInput
from elastane.common.user_cache import digest_content, find_cache, lock_for_one
from elastane.integrations.datasets.documents import read_documents
from elastane.integrations.datasets.tokenizers import (
    Tokenizer,
    digest_tokenizer,
    encode_text,
    find_vocabulary_size,
)
from elastane.integrations.datasets.tokens import TokenFile

FORMAT = 1
SMALL, LARGE = np.dtype(np.uint16), np.dtype(np.uint32)


class TextFiles(TokenFile):
    """Windows of tokens of jsonl, parquet, Arrow or plain text files; see `TokenFile` for the samples.

    The documents follow each other, each with the separator at its end, and the whole is cut into windows.
    The first process tokenises and others wait. The name of the cached result is a digest of the files'
    content and of all settings that decide the tokens, so a changed file is tokenised again. A start reads
    only files with a size or time of change that is new to the cache.

    A starting worker may be silent for half an hour. Tokenise larger texts before the run: create the same
    object once in plain Python.

    Args:
        paths: of the files, in this order; a pattern such as ``data/*.jsonl`` means its sorted matches.
        tokenizer: an object with a method ``encode``, or ``"bytes"`` for tokens 0 to 255.
        length: the number of tokens per window.
        separator: the token at the end of each document.
        documents: add the number of each position's document to samples, as a third part.
        field: the field of a line, or the column, that has the text.
        cache: the folder of the cache; None: ``$XDG_CACHE_HOME/elastane/tokens``.

    Raises:
        BadInput: a file cannot be read, or the tokens do not fit.
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        tokenizer: Tokenizer,
        length: int,
        *,
        separator: int,
        documents: bool = False,
        field: str = "text",
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        folder = Path(cache) if cache is not None else find_cache("tokens")
        folder.mkdir(parents=True, exist_ok=True)
        files = _find_files(paths)
        size = find_vocabulary_size(tokenizer)
        dtype = SMALL if size is not None and max(size - 1, separator) <= np.iinfo(SMALL).max else LARGE
        sha = hashlib.sha256(f"{FORMAT} {digest_tokenizer(tokenizer)} {separator} {field} {dtype}".encode())
        for file in files:
            sha.update(f"{''.join(file.suffixes[-2:])} {digest_content(file, folder)}".encode())
        key = sha.hexdigest()
        path = folder / f"{key}.bin"
        with lock_for_one(folder / f"{key}.lock"):
            if not path.exists():
                _write_tokens(path, files, tokenizer, dtype, separator=separator, field=field)
        source = (
            str(files[0]) if len(files) == 1 else f"the text of {files[0]} and {len(files) - 1} other files"
        )
        super().__init__(path, length, dtype=dtype, separator=separator if documents else None, source=source)


def _find_files(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Path]:
    patterns = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files: list[Path] = []
    for path in map(Path, patterns):
        is_pattern = any(mark in path.name for mark in "*?[")
        matches = sorted(path.parent.glob(path.name)) if is_pattern else [path]
        if not matches or not all(file.is_file() for file in matches):
            raise BadInput(
                f"no such file: {path}",
                means="the training would miss its text",
                do="check the path or pattern",
            )
        files += matches
    if files:
        return files
    raise BadInput(
        "TextFiles was given no path", means="there is no text to train on", do="pass one path or more"
    )


def _write_tokens(
    path: Path, files: list[Path], tokenizer: Tokenizer, dtype: np.dtype, *, separator: int, field: str
) -> None:
    """Write the token file, completely or not at all."""
    end = np.array([separator], dtype)
    # Token files are large, so remove those that a killed process has left unfinished.
    remove_partials(path)
    with open_replacement(path, durable=True) as out:
        for file in files:
            for document in read_documents(file, field):
                for piece in document:
                    out.write(_convert_tokens(encode_text(tokenizer, piece), dtype, file).tobytes())
                out.write(end.tobytes())


def _convert_tokens(tokens: Iterable[int], dtype: np.dtype, file: Path) -> np.ndarray:
    numbers = np.asarray(tokens if isinstance(tokens, list) else list(tokens), np.int64)
    if numbers.size and not 0 <= numbers.min() <= numbers.max() <= np.iinfo(dtype).max:
        raise BadInput(
            f"the tokenizer returned tokens from {numbers.min()} to {numbers.max()} for {file}",
            means=f"the token file has the type {dtype}, which cannot hold them",
            do="have the tokenizer report its size: get_vocab_size() or len() must exceed every token",
        )
    return numbers.astype(dtype)
