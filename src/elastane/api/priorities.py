"""Priority classes: names for how important a job is."""

import msgspec


class PriorityClass(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A name for a priority.

    Args:
        name: as jobs write it.
        value: higher is more important.
        default: for jobs that name none; of several the highest counts, of none the value is 0.
        description: for humans.
    """

    name: str
    value: int
    default: bool = False
    description: str = ""
