"""Changes of documents as lines of text. Pure."""

from collections.abc import Iterable

from elastane.cluster.nouns.config import Change
from elastane.cluster.nouns.differences import describe_field_changes, flatten_fields, list_new_fields

NOUNS = {
    "cohorts": "cohort",
    "teams": "team",
    "priorities": "priority",
    "pools": "pool",
    "reservations": "reservation",
    "triggers": "trigger",
    "rules": "rules of the",
}
SIGNS = {"add": "+", "change": "~", "remove": "-"}


def format_changes(changes: Iterable[Change]) -> list[str]:
    """Return one line for each document that is added, changed or removed."""
    return [_line(change) for change in changes]


def _line(change: Change) -> str:
    head = f"{SIGNS[change.change]} {NOUNS.get(change.kind, change.kind)} {change.name}"
    before, after = flatten_fields(change.before or {}), flatten_fields(change.after or {})
    match change.change:
        case "add":
            words = [f"{field} {value}" for field, value in list_new_fields(change.after or {}).items()]
        case "remove":
            words = []
        case "change":
            words = describe_field_changes(before, after)
    return f"{head}: {', '.join(words)}" if words else head
