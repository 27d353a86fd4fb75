"""Text files, tokenised once into a cached token file."""

import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from elastane.api.atomic_file import open_replacement, remove_partials, replace_file
from elastane.api.errors import BadInput
from elastane.datasets.documents import read_documents
from elastane.datasets.tokenizers import Tokenizer, digest_tokenizer, encode_text, find_vocabulary_size
from elastane.datasets.tokens import TokenFile

FORMAT = 1
SMALL, LARGE = np.dtype(np.uint16), np.dtype(np.uint32)


class TextFiles(TokenFile):
    """Windows of tokens of jsonl, parquet or plain text files; see `TokenFile` for the samples.

    Documents follow each other, each ended by the separator, and the whole is cut into windows. The first
    process tokenises, others wait; the result lies in the cache under a name made of the content of the
    files and of all that decides the tokens, so a file that changed is tokenised anew. Each start still reads
    files whose size or time of change is new to the cache.

    A worker that starts may be silent for two minutes: tokenise more than that takes before the run, by
    making the same object once in plain Python.

    Args:
        paths: of the files, in this order; a pattern such as ``data/*.jsonl`` stands for its sorted matches.
        tokenizer: with a method ``encode``, or ``"bytes"`` for tokens 0 to 255.
        length: tokens per window.
        separator: the token at the end of each document.
        documents: samples say which positions belong to one document.
        field: of a line or column that holds the text.
        cache: folder; ``$XDG_CACHE_HOME/elastane/tokens`` unless given.

    Raises:
        BadInput: files or tokens that do not fit.
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
        folder = Path(cache) if cache is not None else _default_cache()
        folder.mkdir(parents=True, exist_ok=True)
        files = _matched(paths)
        size = find_vocabulary_size(tokenizer)
        dtype = SMALL if size is not None and max(size - 1, separator) <= np.iinfo(SMALL).max else LARGE
        sha = hashlib.sha256(f"{FORMAT} {digest_tokenizer(tokenizer)} {separator} {field} {dtype}".encode())
        for file in files:
            sha.update(f"{''.join(file.suffixes[-2:])} {_content(file, folder)}".encode())
        key = sha.hexdigest()
        path = folder / f"{key}.bin"
        with _locked(folder / f"{key}.lock"):
            if not path.exists():
                _write(path, files, tokenizer, dtype, separator=separator, field=field)
        super().__init__(path, length, dtype=dtype, separator=separator if documents else None)


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elastane" / "tokens"


def _matched(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Path]:
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files: list[Path] = []
    for one in map(Path, given):
        pattern = any(mark in one.name for mark in "*?[")
        found = sorted(one.parent.glob(one.name)) if pattern else [one]
        if not found or not all(file.is_file() for file in found):
            raise BadInput(
                f"there is no file {one}", means="its text would be missing", do="check the path or pattern"
            )
        files += found
    if files:
        return files
    raise BadInput(
        "no text file was named", means="there is nothing to train on", do="pass one path at least"
    )


def _content(file: Path, cache: Path) -> str:
    """SHA-256 of a file, remembered for as long as its size and time of change stay the same."""
    stat = file.stat()
    who = f"{file.resolve()} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns}"
    known = cache / f"{hashlib.sha256(who.encode()).hexdigest()}.content"
    if known.exists():
        return known.read_text()
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    replace_file(known, found.encode(), durable=False)
    return found


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time, also where one is killed in the middle."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(
    path: Path, files: list[Path], tokenizer: Tokenizer, dtype: np.dtype, *, separator: int, field: str
) -> None:
    """The token file, whole or not at all."""
    end = np.array([separator], dtype)
    # Token files are large: what a killed process has left goes.
    remove_partials(path)
    with open_replacement(path, durable=True) as out:
        for file in files:
            for document in read_documents(file, field):
                for piece in document:
                    out.write(_checked(encode_text(tokenizer, piece), dtype, file).tobytes())
                out.write(end.tobytes())


def _checked(tokens: Iterable[int], dtype: np.dtype, file: Path) -> np.ndarray:
    numbers = np.asarray(tokens if isinstance(tokens, list) else list(tokens), np.int64)
    if numbers.size and not 0 <= numbers.min() <= numbers.max() <= np.iinfo(dtype).max:
        raise BadInput(
            f"the tokenizer gave the number {numbers.max()} or {numbers.min()} for {file}",
            means=f"tokens are kept as {dtype}, which cannot hold it",
            do="let the tokenizer's vocabulary size tell how large its numbers get",
        )
    return numbers.astype(dtype)
