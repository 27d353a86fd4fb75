"""The record of a written part, from which the publisher builds the manifest."""

from typing import Any

import msgspec

from elastane.run.nouns.checkpoints import PartFile


class PartRecord(msgspec.Struct, frozen=True):
    """The facts about a part that the publisher needs; a file beside the part until publication.

    Args:
        part: the description of the file.
        scalars: the plain values of optimizer state, for the parameters that begin in this part.
        plain: the other plain values of the state; the same in every part.
        metrics: the metrics of the checkpoint; the same in every part.
    """

    part: PartFile
    scalars: dict[str, dict[str, Any]]
    plain: dict[str, Any]
    metrics: dict[str, float]


def name_record(worker: int) -> str:
    """Return the name of the file with the `PartRecord` of a worker."""
    return f"part-{worker}.json"
