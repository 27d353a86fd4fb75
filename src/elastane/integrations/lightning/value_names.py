"""The names under which a run records the values that a module logs."""

import re

from elastane.run.worker.values import LONGEST_NAME


def clean_name(name: str) -> str:
    """Return an identifier for a name such as ``train/loss``, which a run can record.

    Two names may become one; `MicrobatchMetrics` refuses that.
    """
    cleaned = re.sub(r"\W", "_", name, flags=re.ASCII)[:LONGEST_NAME]
    return cleaned if cleaned.isidentifier() else f"_{cleaned}"[:LONGEST_NAME]
