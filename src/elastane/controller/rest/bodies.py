"""Requests decoded into the nouns, nouns encoded into answers.

FastAPI's own models are pydantic's; the nouns are msgspec's, and are the one schema that Python, files and
the API share. So bodies go past FastAPI, and `elastane.controller.rest.description` describes them.
"""

import json
import re
from http import HTTPStatus
from typing import Any

import msgspec
from anyio import to_thread
from fastapi import Depends, Request, Response
from starlette.requests import ClientDisconnect

from elastane.api.document_parser import parse_document
from elastane.api.errors import BadField
from elastane.controller.rest.problems import Refusal
from elastane.controller.store.replies import Reply

LARGEST_INTEGER = 2**53
"""Beyond it JSON's numbers are not exact everywhere, nor do they fit every column."""
SUSPECT = re.compile(rb"\\u0000|\d{16}")
"""In the bytes of every body that `_check` refuses."""


def body(kind: Any, empty: Any = None) -> Any:  # noqa: ANN401 - FastAPI's dependencies are untyped
    """A dependency: the request's body as a value of this type.

    Args:
        kind: the type.
        empty: what a request without a body means; None: it must have one.

    Raises:
        Refusal: it is not JSON, or has not arrived.
        BadField: it is not of this type, or a key is there twice.
    """

    async def decoded(request: Request) -> Any:  # noqa: ANN401
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
        # A large one takes long; others are served meanwhile.
        return await to_thread.run_sync(_decoded, raw, kind)

    return Depends(decoded)


def _decoded(raw: bytes, kind: Any) -> Any:  # noqa: ANN401
    try:
        document = msgspec.json.decode(raw)
        if SUSPECT.search(raw):
            _check(document, "")
        # Again for its keys alone: msgspec keeps the last of two, and numbers mean nothing here.
        json.loads(raw, object_pairs_hook=_once, parse_int=str, parse_float=str)
        return parse_document(document, kind, "request")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        said = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Refusal(
            HTTPStatus.BAD_REQUEST, f"the body is not JSON: {said}", do="send one JSON object"
        ) from error


def _once(pairs: list[tuple[str, object]]) -> None:
    """Refuses what means two things: readers of JSON differ in which of two values counts."""
    seen = set[str]()
    for key, _ in pairs:
        if key in seen:
            raise BadField(
                key,
                "is there twice in one place",
                means="only one of the two would count, and the other would be lost",
                do="write it once",
            )
        seen.add(key)


def _check(value: object, path: str) -> None:
    """Refuses what JSON allows and a database or another reader of JSON does not."""
    match value:
        case dict():
            for key, inner in value.items():
                _check(key, path)
                _check(inner, f"{path}.{key}" if path else key)
        case list():
            for index, inner in enumerate(value):
                _check(inner, f"{path}[{index}]")
        case str() if "\0" in value:
            raise BadField(path or "request", "holds a NUL character", do="leave it out")
        case int() if abs(value) > LARGEST_INTEGER:
            raise BadField(
                path,
                f"has more than {LARGEST_INTEGER.bit_length() - 1} bits",
                do="write a smaller one",
            )
        case _:
            pass


def reply(value: object, *, status: HTTPStatus = HTTPStatus.OK, version: int | None = None) -> Reply:
    """A value as an answer; its version becomes the ``ETag``."""
    return Reply(
        status=status, body=msgspec.json.encode(value), etag="" if version is None else f'"{version}"'
    )


def response(reply_: Reply, headers: dict[str, str] | None = None) -> Response:
    return Response(
        reply_.body or None,
        status_code=reply_.status,
        media_type="application/json" if reply_.body else None,
        headers=({"ETag": reply_.etag} if reply_.etag else {}) | (headers or {}),
    )
