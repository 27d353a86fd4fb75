"""The latest values that a script has logged; `elastane.run.observability.curves` draws all of them."""

from collections.abc import Iterable

from elastane.run.nouns.records import LedgerLine


def collect_latest_values(ledger: Iterable[LedgerLine]) -> dict[str, float | None]:
    """Return the newest value of each name, in order of appearance; None: it was not finite."""
    latest: dict[str, float | None] = {}
    for line in ledger:
        latest.update(line.logged)
    return latest
