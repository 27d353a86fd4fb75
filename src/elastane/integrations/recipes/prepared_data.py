"""The result of preparing the data of a recipe, before its run has a directory."""

import msgspec

FEW = 8
"""Held-out samples with a mean loss that depends on chance."""


class PreparedData(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="prepared"):
    """The data of a recipe, all of it read once and found to be valid.

    Args:
        train: the number of samples for training.
        held_out: the number of samples for evaluations.
        summary: a sentence with the number of samples, and how many were truncated or dropped.
    """

    train: int
    held_out: int
    summary: str

    def describe(self) -> str:
        """Return a sentence for the terminal."""
        held_out = f"; {self.held_out:,} of them held out" if self.held_out else ""
        if 0 < self.held_out < FEW:
            held_out += ", too few for a held-out loss to mean much: raise data.held_out, or use more data"
        return f"data: {self.summary}{held_out}"
