"""The files behind the path of a recipe's data, and their format."""

import hashlib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

import msgspec

from elastane.common.errors import BadInput
from elastane.common.field_checks import make_field_error
from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import Decoder, Malformed, read_bytes
from elastane.common.user_cache import digest_content
from elastane.integrations.datasets.rows import LINES, find_kind
from elastane.integrations.recipes.data.spec import DataSpec, Format, find_paths

SUFFIXES: dict[str, Format] = {
    **dict.fromkeys(LINES, "jsonl"),
    ".parquet": "parquet",
    ".arrow": "datasets",
    ".bin": "tokens",
    ".npy": "tokens",
}
"""The format of files with a suffix; all others are text."""
STATE, PARTS = "state.json", "dataset_dict.json"
"""The files of a `datasets` folder that name its Arrow files, and its parts."""


T = TypeVar("T", bound=msgspec.Struct)


class DataFiles(msgspec.Struct, frozen=True):
    """The files of one set of data.

    Args:
        format: never ``auto``.
        files: in the order of their samples.
    """

    format: Format
    files: tuple[Path, ...]

    def describe(self) -> str:
        """Return the first file, and the number of the others."""
        first, *others = self.files
        return f"{first} (and {len(others)} more)" if others else str(first)

    def digest(self, cache: Path) -> str:
        """Return a digest of the content of all files; their names and their folder do not matter."""
        digests = " ".join(digest_content(file, cache) for file in self.files)
        return hashlib.sha256(f"{self.format} {digests}".encode()).hexdigest()


class _State(msgspec.Struct):
    """The description of a saved dataset, as far as it is needed to read it."""

    data_files: tuple[dict[str, str], ...] = msgspec.field(name="_data_files")


class _Parts(msgspec.Struct):
    splits: tuple[str, ...]


def find_files(spec: DataSpec, path: str, field: str = "data.path") -> DataFiles:
    """Find the files of a path, a pattern or a folder, and their format; ``field`` names it in errors."""
    found = find_paths(path)
    if not found:
        raise make_field_error(field, f"no such file: {path}", "correct the path or pattern")
    if len(found) == 1 and found[0].is_dir():
        folder = found[0]
        if (folder / PARTS).is_file() or (folder / STATE).is_file():
            return DataFiles("datasets", _find_arrow_files(spec, folder))
        found = sorted(file for file in folder.iterdir() if file.is_file() and file.name[0] not in "._")
    files = tuple(file for file in found if file.is_file())
    if not files:
        raise make_field_error(
            field,
            f"{path} has no files",
            "write a file, a pattern such as data/*.jsonl, or a folder with files, not folders, in it",
        )
    return DataFiles(_decide_format(spec, files, field), files)


def _decide_format(spec: DataSpec, files: Sequence[Path], field: str) -> Format:
    formats = {SUFFIXES.get(find_kind(file), "text"): file for file in reversed(files)}
    if spec.format != "auto":
        return spec.format
    if len(formats) > 1:
        names = ", ".join(f"{file.name} ({kind})" for kind, file in sorted(formats.items()))
        raise make_field_error(
            field,
            f"the files have several formats: {names}",
            "name files of one format with a pattern, such as data/*.jsonl",
        )
    return next(iter(formats))


def _find_arrow_files(spec: DataSpec, folder: Path) -> tuple[Path, ...]:
    """Return the Arrow files of a folder of `datasets`; they must be in that folder."""
    if (folder / PARTS).is_file():
        parts = _decode(folder / PARTS, _Parts).splits
        if spec.split not in parts:
            near = get_close_matches(spec.split, parts, n=1) or parts
            raise make_field_error(
                "data.split",
                f"{folder} has no part {spec.split!r}",
                f"write {' or '.join(map(escape_line, near))}",
            )
        folder = folder / spec.split
    names = [entry.get("filename", "") for entry in _decode(folder / STATE, _State).data_files]
    files = tuple(folder / name for name in names)
    for name, file in zip(names, files, strict=True):
        if name != Path(name).name or not file.is_file():
            raise _build_broken_folder_error(folder, f"it names the file {escape_line(name)!r}")
    return files


def _decode(path: Path, kind: type[T]) -> T:
    try:
        return Decoder[T](kind)(read_bytes(path))
    except (Malformed, OSError) as error:
        raise _build_broken_folder_error(path.parent, f"{path.name}: {error}") from error


def _build_broken_folder_error(folder: Path, why: str) -> BadInput:
    return BadInput(
        f"{folder} is not a complete folder of datasets: {why}",
        means="its samples cannot be read",
        do="save the dataset again: dataset.save_to_disk(folder)",
    )
