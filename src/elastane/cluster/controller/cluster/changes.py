"""Descriptions of changes, for events and for the audit log. Pure."""

from typing import Any

import msgspec

from elastane.cluster.nouns.differences import describe_field_changes, flatten_fields, list_new_fields
from elastane.cluster.nouns.jobs import JobSpec


def describe_spec_change(before: JobSpec, after: JobSpec) -> str:
    """Describe a change of a spec: ``elasticPolicy.maxReplicas 4 -> 8``; empty: nothing to add."""
    # Variables may be secrets. Pausing and resuming have events of their own.
    policy = msgspec.structs.replace(after.run_policy, suspend=before.run_policy.suspend)
    shown = msgspec.structs.replace(after, env=before.env, run_policy=policy)
    return ", ".join(describe_field_changes(_list_fields(before), _list_fields(shown)))


def _list_fields(spec: JobSpec) -> dict[str, str]:
    """Return the fields of a spec as text, with its effective limits first."""
    least, most = spec.elastic_policy.limits
    limits = {"elasticPolicy.minReplicas": str(least), "elasticPolicy.maxReplicas": str(most)}
    return limits | flatten_fields(msgspec.to_builtins(spec)) | limits


def describe_document_change(before: dict[str, Any] | None, after: dict[str, Any] | None) -> str:
    """Describe a change of a document in its JSON form: ``devices 8 -> 16``; None: there is no document."""
    if after is None:
        return ""
    if before is None:
        return ", ".join(f"{field} {value}" for field, value in list_new_fields(after).items())
    return ", ".join(describe_field_changes(flatten_fields(before), flatten_fields(after)))


def add_words(what: str, words: str) -> str:
    """Return a sentence with the description of a change after it."""
    return f"{what}: {words}" if words else what
