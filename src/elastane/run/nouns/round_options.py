"""The choices of a run in rounds that scripts and recipes name by a word."""

from typing import Literal, TypeAlias

WireName: TypeAlias = Literal["full", "bf16", "int8", "int4"]
"""The format of what crosses between machines; ``full``: the type of the parameters."""
InnerName: TypeAlias = Literal["fresh", "averaged"]
"""The state of the inner optimizer at the beginning of a virtual rank; ``fresh``: none."""
