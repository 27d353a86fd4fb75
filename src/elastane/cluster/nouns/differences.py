"""The fields of documents, and readable descriptions of the differences between two. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec

from elastane.cluster.nouns.config import Limits
from elastane.cluster.nouns.jobs import JobSpec


def build_lean_document(document: msgspec.Struct) -> dict[str, Any]:
    """Return a document in the form of a file: without the fields that have their default values."""
    found = {}
    for field in msgspec.structs.fields(document):
        value = getattr(document, field.name)
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        if field.required or value != default:
            found[field.encode_name] = _build_lean_value(value)
    tag = document.__struct_config__.tag
    if isinstance(tag, str):
        return {str(document.__struct_config__.tag_field): tag} | found
    return found


def _build_lean_value(value: object) -> Any:
    if isinstance(value, msgspec.Struct):
        return build_lean_document(value)
    if isinstance(value, tuple):
        return [_build_lean_value(item) for item in value]
    return msgspec.to_builtins(value)


def list_new_fields(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a new document, without the limits of a team that have their default values."""
    usual = flatten_fields({"limits": msgspec.to_builtins(Limits())})
    return {field: value for field, value in flatten_fields(document).items() if usual.get(field) != value}


def describe_field_changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return a line such as ``devices 64 -> 32`` for each field that differs."""
    names = dict.fromkeys((*before, *after))
    return [
        f"{name} {before.get(name, 'none')} -> {after.get(name, 'none')}"
        for name in names
        if before.get(name) != after.get(name)
    ]


def flatten_fields(value: Any, path: str = "") -> dict[str, str]:
    """Return the fields of a document and its inner documents by path, without its name and empty fields.

    Quotas are named by their pools.
    """
    found: dict[str, str] = {}
    match value:
        case dict():
            for key, field in value.items():
                if path or key != "name":
                    found |= flatten_fields(field, f"{path}.{key}" if path else str(key))
        case [dict(), *_]:
            for number, item in enumerate(value):
                rest = {key: inner for key, inner in item.items() if key != "pool"}
                found |= flatten_fields(rest, f"{path}.{item.get('pool', number)}")
        case None | "" | [] | ():
            pass
        case list() | tuple():
            found[path] = "[" + " ".join(map(str, value)) + "]"
        case bool():
            found[path] = "yes" if value else "no"
        case float():
            found[path] = f"{value:g}"
        case _:
            found[path] = str(value)
    return found


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


def add_article(noun: str) -> str:
    """Return a noun with its article: ``an engine``."""
    return f"an {noun}" if noun.startswith(tuple("aeiou")) else f"a {noun}"


def add_words(what: str, words: str) -> str:
    """Return a sentence with the description of a change after it."""
    return f"{what}: {words}" if words else what
