"""Bodies of requests and answers, decoded and encoded by msgspec.

FastAPI uses models of pydantic. The types of `elastane.cluster.nouns` are those of msgspec, and are the
schema that Python, files and the API share. So bodies bypass FastAPI, and
`elastane.cluster.controller.rest.description` describes them.
"""

import json
import re
from http import HTTPStatus
from typing import Any

import msgspec
from anyio import to_thread
from fastapi import Depends, Request, Response
from starlette.requests import ClientDisconnect

from elastane.cluster.controller.rest.problems import Refusal
from elastane.cluster.controller.store.replies import Reply
from elastane.common.document_parser import parse_document
from elastane.common.errors import BadField

LARGEST_INTEGER = 2**53
"""Beyond it, numbers of JSON are not exact everywhere and do not fit every column."""
SUSPECT = re.compile(rb"\\u0000|\d{16}")
"""Matches the bytes of every body that `_refuse_unsafe_values` refuses; other bodies skip that check."""


def parse_body(kind: Any, empty: Any = None) -> Any:
    """Return a dependency of FastAPI that decodes a body; ``empty`` stands for none, unless that is None."""

    async def decode(request: Request) -> Any:
        try:
            raw = request.state.body = await request.body()
        except ClientDisconnect as error:
            raise Refusal(
                HTTPStatus.BAD_REQUEST,
                "the body has not arrived",
                means="nothing was done",
                do="send it again",
            ) from error
        if not raw and empty is not None:
            return empty
        # A large body takes long to decode; a thread keeps the event loop free.
        return await to_thread.run_sync(_decode_body, raw, kind)

    return Depends(decode)


def _decode_body(raw: bytes, kind: Any) -> Any:
    try:
        document = msgspec.json.decode(raw)
        if SUSPECT.search(raw):
            _refuse_unsafe_values(document, "")
        # Parse it again to find repeated keys: msgspec keeps the last of two. Numbers do not matter here.
        json.loads(raw, object_pairs_hook=_refuse_repeated_keys, parse_int=str, parse_float=str)
        return parse_document(document, kind, "request")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        detail = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Refusal(
            HTTPStatus.BAD_REQUEST, f"the body is not JSON: {detail}", do="send one JSON object"
        ) from error


def _refuse_repeated_keys(pairs: list[tuple[str, object]]) -> None:
    """Refuse repeated keys: readers of JSON differ in which of two values counts."""
    seen = set[str]()
    for key, _ in pairs:
        if key in seen:
            raise BadField(
                key,
                "appears twice in one object",
                means="only one of the two values would count",
                do="write it once",
            )
        seen.add(key)


def _refuse_unsafe_values(value: object, path: str) -> None:
    """Refuse values that JSON allows, but a database or another reader of JSON does not."""
    match value:
        case dict():
            for key, inner in value.items():
                _refuse_unsafe_values(key, path)
                _refuse_unsafe_values(inner, f"{path}.{key}" if path else key)
        case list():
            for index, inner in enumerate(value):
                _refuse_unsafe_values(inner, f"{path}[{index}]")
        case str() if "\0" in value:
            raise BadField(path or "request", "contains a NUL character", do="remove it")
        case int() if abs(value) > LARGEST_INTEGER:
            raise BadField(
                path, f"has more than {LARGEST_INTEGER.bit_length() - 1} bits", do="write a smaller number"
            )
        case _:
            pass


def build_reply(value: object, *, status: HTTPStatus = HTTPStatus.OK, version: int | None = None) -> Reply:
    """Return a value as an answer; its version becomes the ``ETag``."""
    return Reply(
        status=status, body=msgspec.json.encode(value), etag="" if version is None else f'"{version}"'
    )


def respond(value: object, *, version: int | None = None) -> Response:
    """Return a value as a successful response; its version becomes the ``ETag``."""
    return build_response(build_reply(value, version=version))


def build_response(reply: Reply, headers: dict[str, str] | None = None) -> Response:
    return Response(
        reply.body or None,
        status_code=reply.status,
        media_type="application/json" if reply.body else None,
        headers=({"ETag": reply.etag} if reply.etag else {}) | (headers or {}),
    )
