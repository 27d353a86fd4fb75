"""Parameters that several endpoints have."""

from typing import Annotated

from fastapi import Path, Query

from elastane.api.reading import NAME as NAMES

NAME = rf"^{NAMES.pattern}$"

Name = Annotated[str, Path(pattern=NAME, max_length=100)]
Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many items.")]
After = Annotated[
    int | None, Query(ge=0, le=2**62, description="Where the page begins: `after` of the page before.")
]
NameFilter = Annotated[str, Query(pattern=rf"{NAME}|^$", max_length=100)]
PrefixFilter = Annotated[str, Query(pattern=r"^[A-Za-z0-9._-]*$", max_length=100)]
USER = r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}$"
UserFilter = Annotated[str, Query(pattern=rf"{USER}|^$", max_length=100)]
