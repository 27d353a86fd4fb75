"""What a script has logged of its steps, at a glance; `elastane.observability.curves` draws all of it."""

from collections.abc import Iterable

from elastane.api.records import LedgerLine


def latest_values(ledger: Iterable[LedgerLine]) -> dict[str, float]:
    """Return the newest value of each name, in the order in which names appeared."""
    latest: dict[str, float] = {}
    for line in ledger:
        latest.update(line.logged)
    return latest
