"""What the exporting process says on its standard output: one line, when it is done."""

from typing import Literal, TypeAlias

import msgspec

ExportFormat: TypeAlias = Literal["hf", "dcp", "torch"]
ExportType: TypeAlias = Literal["bf16", "fp16", "fp32"]


class Exported(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="exported"):
    """``files`` maps each file below ``out`` to its bytes."""

    out: str
    files: dict[str, int]


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="refused"):
    """An `elastane.api.errors.BadInput`; nothing was written."""

    what: str
    means: str
    do: str
