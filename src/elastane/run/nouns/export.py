"""The result of an export: the exporting process, which has torch, prints it as one line at its end."""

from typing import Literal, TypeAlias

import msgspec

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
