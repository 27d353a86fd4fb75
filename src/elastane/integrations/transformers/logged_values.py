"""The values of a Trainer's logs that go to the ledger: numbers that are the same on every worker."""

import re
from collections.abc import Mapping

LONGEST_NAME = 64
OF_ONE_PROCESS = re.compile(r"_(runtime|per_second|preparation_time)$|_mem_(cpu|gpu)_|^before_init_mem_")
"""Times and memory differ between workers; the ledger has the times of each step."""


def select_shared_values(logs: Mapping[str, object]) -> dict[str, float]:
    """Return the numbers of a log that do not depend on the worker."""
    return {
        name: float(value)
        for name, value in logs.items()
        if isinstance(value, int | float) and not OF_ONE_PROCESS.search(name)
    }


def name_for_ledger(name: str) -> str:
    """Return a name of a log as an identifier: other characters, such as a slash, become underscores."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII)
    return (text if text[:1].isalpha() else f"_{text}")[:LONGEST_NAME]
