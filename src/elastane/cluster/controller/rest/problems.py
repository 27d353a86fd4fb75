"""Errors as ``application/problem+json``: what happened, what it means, and what to do."""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from elastane.cluster.controller.jobs.stored_job import JobEnded, JobNameTaken, JobUnreadable
from elastane.cluster.controller.rest.parameters import WORDS
from elastane.cluster.controller.store.failures import (
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnusable,
    UnreadableRecord,
)
from elastane.common.bodies import Problem
from elastane.common.errors import BadField, BadInput, ElastaneError
from elastane.common.safe_text import escape_line

LONGEST_DETAIL = 2000
LONGEST_FIELD = 300
"""Characters."""

LONG_S = 60
log = logging.getLogger(__name__)


class Refusal(ElastaneError):
    """A request is refused."""

    def __init__(
        self,
        status: HTTPStatus,
        what: str,
        *,
        means: str = "",
        do: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        self.status = status
        self.headers = headers or {}
        super().__init__(what, means=means, do=do)


def make_missing_error(what: str) -> Refusal:
    """Return the refusal for something that does not exist, or that the caller may not see.

    The two cases have the same answer.
    """
    return Refusal(
        HTTPStatus.NOT_FOUND,
        f"there is no {what}",
        means="it does not exist, or your token may not see it",
        do="check the name, and the user and team of your token",
    )


STATUS: tuple[tuple[type[ElastaneError], HTTPStatus], ...] = (
    (JobNameTaken, HTTPStatus.CONFLICT),
    (JobEnded, HTTPStatus.CONFLICT),
    (JobUnreadable, HTTPStatus.CONFLICT),
    (BadField, HTTPStatus.UNPROCESSABLE_ENTITY),
    (BadInput, HTTPStatus.BAD_REQUEST),
    (StoreFull, HTTPStatus.INSUFFICIENT_STORAGE),
    (StoreBusy, HTTPStatus.SERVICE_UNAVAILABLE),
    # Not 503: a repeated request gets the same answer until an operator has repaired the record.
    (UnreadableRecord, HTTPStatus.INTERNAL_SERVER_ERROR),
    (StoreError, HTTPStatus.SERVICE_UNAVAILABLE),
)
"""The first matching row counts."""


def choose_status(error: ElastaneError) -> HTTPStatus:
    if isinstance(error, Refusal):
        return error.status
    return next(
        (status for kind, status in STATUS if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR
    )


def make_problem(
    status: HTTPStatus, detail: str, *, means: str = "", do: str = "", field: str = ""
) -> Problem:
    return Problem(
        type="about:blank",
        title=status.phrase,
        status=status,
        # These texts may quote the request.
        detail=escape_line(detail, LONGEST_DETAIL),
        means=escape_line(means, LONGEST_DETAIL),
        do=escape_line(do, LONGEST_DETAIL),
        field=escape_line(field, LONGEST_FIELD),
    )


def make_problem_response(problem_: Problem, headers: dict[str, str] | None = None) -> Response:
    return Response(
        msgspec.json.encode(problem_),
        status_code=problem_.status,
        media_type="application/problem+json",
        headers=headers,
    )


def answer_refusal(error: ElastaneError) -> Response:
    """Build the answer to a request that failed with this error."""
    status = choose_status(error)
    headers = error.headers if isinstance(error, Refusal) else {}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        # A store that must not be used needs an operator, so clients should wait longer.
        wait_s = LONG_S if isinstance(error, StoreUnusable) else 1
        headers = {"Retry-After": str(wait_s)} | headers
    field = getattr(error, "field", "")
    return make_problem_response(
        make_problem(status, error.what, means=error.means, do=error.do, field=field), headers
    )


def make_parameter_problem(error: RequestValidationError) -> Problem:
    """Build the problem of a path, query or header that does not match the description."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if words := WORDS.get(first.get("ctx", {}).get("pattern", "")):
        return make_problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"{place}: {first['input']!r} does not have the right form",
            means="nothing was done",
            do=f"write {words}",
            field=place,
        )
    return make_problem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        f"{place}: {first['msg']}",
        means="nothing was done",
        do="see the parameters of this request in /v1/openapi.json",
        field=place,
    )


def list_methods(description: Mapping[str, Any], path: str) -> list[str]:
    """Return the methods of a path, from the OpenAPI description. FastAPI knows only those of one route."""
    paths: Mapping[str, Mapping[str, Any]] = description["paths"]
    fitting = [verbs for template, verbs in paths.items() if compile_path(template)[0].match(path)]
    return sorted({verb.upper() for verbs in fitting for verb in verbs})


def install_problem_handlers(app: FastAPI) -> None:
    """Turn every error of a request into a problem."""

    @app.exception_handler(ElastaneError)
    def answer_known_error(_: Request, error: ElastaneError) -> Response:
        return answer_refusal(error)

    @app.exception_handler(RequestValidationError)
    def answer_parameter_error(_: Request, error: RequestValidationError) -> Response:
        return make_problem_response(make_parameter_problem(error))

    @app.exception_handler(HTTPException)
    def answer_routing_error(request: Request, error: HTTPException) -> Response:
        status, headers = HTTPStatus(error.status_code), dict(error.headers or {})
        do = "/v1/openapi.json lists all requests"
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            # The description itself is not in the description.
            headers["Allow"] = ", ".join(list_methods(app.openapi(), request.url.path) or ["GET"])
            do = f"use one of {headers['Allow']}; {do}"
        return make_problem_response(
            make_problem(status, str(error.detail), means="nothing was done", do=do), headers
        )

    @app.exception_handler(Exception)
    def answer_unknown_error(request: Request, error: Exception) -> Response:
        # Only the log has the error: a traceback may hold values that the caller must not see.
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return make_problem_response(
            make_problem(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                "the controller failed to answer",
                means="this is a bug in Elastane; the request may have been done or not",
                do="repeat it with the same Idempotency-Key; the controller's log has details",
            )
        )
