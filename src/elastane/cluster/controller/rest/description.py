"""The OpenAPI description: that of FastAPI, with the bodies and answers that bypass FastAPI."""

from http import HTTPStatus
from importlib.metadata import version
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from elastane.cluster.controller.rest.links import add_links
from elastane.cluster.controller.rest.parameters import NAME, USER
from elastane.common.bodies import Problem

FORMS = (
    *((kind, "name", NAME) for kind in ("JobSpec", "Cohort", "Team", "PriorityClass", "DeclaredEngine")),
    *((kind, "name", NAME) for kind in ("Pool", "Reservation", "Trigger")),
    ("JobSpec", "team", NAME),
    ("NewToken", "user", USER),
    ("Notice", "node", NAME),
    ("Capacity", "pool", NAME),
    ("Price", "pool", NAME),
    ("Metric", "metric", NAME),
)
"""Patterns of text fields: type, field and pattern. The types themselves check them with clear errors."""
MARK = "x-msgspec"
REF = "#/components/schemas/{name}"
BYTES = "application/octet-stream"
BINARY = {"type": "string", "format": "binary"}
PROBLEM = {
    "description": "The request failed; the body gives the reason.",
    "content": {"application/problem+json": {"schema": {"$ref": REF.format(name="Problem")}}},
}
ABOUT = """The controller of an Elastane cluster. Send `Authorization: Bearer ela_...`.

Requests that change something accept an `Idempotency-Key`: a repetition with the same key gets the first
answer and has no further effect. To change a thing only if no other request has changed it since you read it,
send its `ETag` as `If-Match`. A failed request is answered with `application/problem+json`: what happened,
what it means and what to do. For a thing that a token may not see, the answer is 404."""


def describe_route(
    kind: Any,
    *,
    takes: Any = None,
    optional: bool = False,
    status: HTTPStatus = HTTPStatus.OK,
    also: HTTPStatus | None = None,
    media: str = "application/json",
    or_as: str = "",
    takes_bytes: bool = False,
) -> dict[str, Any]:
    """Describe the answer and the body of a route, as arguments of its decorator.

    Args:
        takes: type of the request's body; None: it has none.
        optional: the body may be left out.
        also: of a successful answer of the same type, if something was created.
        or_as: media type of the answer as text, if a request can ask for it.
        takes_bytes: the body is not JSON.
    """
    content = {} if kind is None else {"content": {media: {"schema": _mark(kind)}}}
    if or_as:
        content["content"][or_as] = {"schema": _mark(str)}
    extra: dict[str, Any] = {}
    if takes is not None:
        extra["requestBody"] = {
            "required": not optional,
            "content": {"application/json": {"schema": _mark(takes)}},
        }
    if takes_bytes:
        extra["requestBody"] = {"required": True, "content": {BYTES: {"schema": BINARY}}}
    good = {int(code): {"description": code.phrase, **content} for code in (status, also) if code is not None}
    return {"status_code": status, "responses": {**good, "default": PROBLEM}, "openapi_extra": extra}


def build_description(app: FastAPI) -> dict[str, Any]:
    """Build the description as JSON, once."""
    if app.openapi_schema is None:
        schema = get_openapi(
            title="Elastane",
            version=version("elastane"),
            description=ABOUT,
            routes=app.routes,
            openapi_version="3.1.0",
        )
        shapes, components = msgspec.json.schema_components([Problem, *_kinds.values()], ref_template=REF)
        _resolve(schema["paths"], dict(zip(_kinds, shapes[1:], strict=True)))
        for path in schema["paths"].values():
            for operation in path.values():
                # FastAPI's own shape of a wrong parameter, which is a Problem here.
                operation["responses"].pop("422", None)
                if "description" in operation:
                    operation["summary"] = operation["description"].partition(". ")[0].removesuffix(".")
        add_links(schema["paths"])
        for kind, field, pattern in FORMS:
            components[kind]["properties"][field]["pattern"] = pattern
        schema.setdefault("components", {})["schemas"] = components
        app.openapi_schema = schema
    return app.openapi_schema


_kinds: dict[str, Any] = {}


def _mark(kind: Any) -> dict[str, str]:
    """Mark the place of a type's schema, because FastAPI's models of the description take only JSON."""
    _kinds[repr(kind)] = kind
    return {MARK: repr(kind)}


def _resolve(node: Any, shapes: dict[str, dict[str, Any]]) -> None:
    """Replace the marks by schemas."""
    if isinstance(node, dict):
        if MARK in node:
            node.update(shapes[node.pop(MARK)])
            return
        node = list(node.values())
    if isinstance(node, list):
        for inner in node:
            _resolve(inner, shapes)
