"""Priority classes: names for the priorities of jobs."""

import msgspec


class PriorityClass(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A name for a priority.

    Args:
        name: as jobs write it.
        value: higher is more important.
        default: it applies to jobs that name no class. Of several defaults the highest counts; without one
            the value is 0.
        description: for humans.
    """

    name: str
    value: int
    default: bool = False
    description: str = ""
