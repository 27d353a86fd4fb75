"""The answers of programs with torch to the command line, which runs without torch: one line of JSON each."""

import sys
from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from elastane.common.errors import ElastaneError
from elastane.run.nouns.records import Digest

ExportFormat: TypeAlias = Literal["hf", "dcp", "torch"]
ExportType: TypeAlias = Literal["bf16", "fp16", "fp32"]


class ExportedModel(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="exported"):
    """A finished export.

    Args:
        out: path of the new folder.
        files: size in bytes of each file below it.
        checked: how the export was read back and compared, in sentences.
    """

    out: str
    files: dict[str, int]
    checked: tuple[str, ...] = ()


class ExportRefusal(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="refused"):
    """The parts of an `elastane.common.errors.ElastaneError`; nothing was written."""

    what: str
    means: str
    do: str
    exit_code: int = 2


class RestoreRehearsal(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="rehearsed"):
    """A checkpoint that was read back as a resumed run reads it.

    Args:
        workers: how many read their parts of the state at the same time, each into its own memory.
        bytes: bytes that all of them read and compared with the checksums.
        seconds: time until the last of them had finished.
        digest: digest of the restored state.
    """

    workers: int
    bytes: int
    seconds: float
    digest: Digest


def print_answer(answer: Callable[[], msgspec.Struct]) -> int:
    """Print the answer, or the reason for a refusal; `elastane.cli.torch_process` reads the line.

    Returns:
        The exit code.
    """
    line: msgspec.Struct
    try:
        line = answer()
    except ElastaneError as error:
        line = ExportRefusal(what=error.what, means=error.means, do=error.do, exit_code=error.exit_code)
    sys.stdout.write(f"{msgspec.json.encode(line).decode()}\n")
    return isinstance(line, ExportRefusal)
