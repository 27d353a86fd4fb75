"""What a process that has torch says on its standard output to one that has not: one line, at its end."""

from typing import Literal, TypeAlias

import msgspec

ExportFormat: TypeAlias = Literal["hf", "dcp", "torch"]
ExportType: TypeAlias = Literal["bf16", "fp16", "fp32"]


class ExportedModel(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="exported"):
    """A new folder.

    Args:
        out: its path.
        files: each file below it, with its bytes.
        checked: how it was read back, in sentences.
    """

    out: str
    files: dict[str, int]
    checked: tuple[str, ...] = ()


class ExportRefusal(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="refused"):
    """An `elastane.api.errors.ElastaneError`; nothing was written."""

    what: str
    means: str
    do: str
    exit_code: int = 2
