"""What a script has logged of its steps, at a glance; `elastane.observability.curves` draws all of it."""

from collections.abc import Iterable

from elastane.api.records import LedgerLine


def collect_latest_values(ledger: Iterable[LedgerLine]) -> dict[str, float | None]:
    """Return the newest value of each name, in order of appearance; None where it was not finite."""
    latest: dict[str, float | None] = {}
    for line in ledger:
        latest.update(line.logged)
    return latest
