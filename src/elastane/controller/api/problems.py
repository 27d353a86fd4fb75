"""Whatever goes wrong, as ``application/problem+json`` with what happened, what it means and what to do."""

import logging
from http import HTTPStatus

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from elastane.api.errors import BadField, BadInput, ElastaneError
from elastane.api.wire import Problem
from elastane.controller.api.parameters import WORDS
from elastane.controller.store.failures import StoreBusy, StoreError, StoreFull, StoreUnusable
from elastane.controller.store.jobs import Ended, NameTaken

LONG_S = 60
log = logging.getLogger(__name__)


class Refusal(ElastaneError):
    """A request that is not done.

    Args:
        status: of HTTP.
        what: happened.
        means: for whoever asked.
        do: about it.
        headers: of the answer.
    """

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


def missing(what: str) -> Refusal:
    """There is no such thing, or it is not theirs to see: nobody can tell one from the other."""
    return Refusal(
        HTTPStatus.NOT_FOUND,
        f"there is no {what}",
        means="it does not exist, or your token may not see it",
        do="look at the name, and at whose token this is",
    )


STATUS: tuple[tuple[type[ElastaneError], HTTPStatus], ...] = (
    (NameTaken, HTTPStatus.CONFLICT),
    (Ended, HTTPStatus.CONFLICT),
    (BadField, HTTPStatus.UNPROCESSABLE_ENTITY),
    (BadInput, HTTPStatus.BAD_REQUEST),
    (StoreFull, HTTPStatus.INSUFFICIENT_STORAGE),
    (StoreBusy, HTTPStatus.SERVICE_UNAVAILABLE),
    (StoreError, HTTPStatus.SERVICE_UNAVAILABLE),
)
"""The first row that fits."""


def status_of(error: ElastaneError) -> HTTPStatus:
    if isinstance(error, Refusal):
        return error.status
    return next(
        (status for kind, status in STATUS if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR
    )


def problem(status: HTTPStatus, detail: str, *, means: str = "", do: str = "", field: str = "") -> Problem:
    return Problem(
        type="about:blank",
        title=status.phrase,
        status=status,
        detail=detail,
        means=means,
        do=do,
        field=field,
    )


def answer(problem_: Problem, headers: dict[str, str] | None = None) -> Response:
    return Response(
        msgspec.json.encode(problem_),
        status_code=problem_.status,
        media_type="application/problem+json",
        headers=headers,
    )


def refused(error: ElastaneError) -> Response:
    """What is not done, to whoever asked for it."""
    status = status_of(error)
    headers = error.headers if isinstance(error, Refusal) else {}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        # A store that is not used needs a person, so that clients need not try for long.
        wait_s = LONG_S if isinstance(error, StoreUnusable) else 1
        headers = {"Retry-After": str(wait_s)} | headers
    field = getattr(error, "field", "")
    return answer(problem(status, error.what, means=error.means, do=error.do, field=field), headers)


def of_parameters(error: RequestValidationError) -> Problem:
    """A path, query or header that is not as described."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if words := WORDS.get(first.get("ctx", {}).get("pattern", "")):
        return problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"{place}: {first['input']!r} is not written as it must be",
            means="nothing was done",
            do=f"write {words}",
            field=place,
        )
    return problem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        f"{place}: {first['msg']}",
        means="nothing was done",
        do="see the parameters of this request in /v1/openapi.json",
        field=place,
    )


def install(app: FastAPI) -> None:
    """Every error that can be raised below becomes a problem."""

    @app.exception_handler(ElastaneError)
    def known(_: Request, error: ElastaneError) -> Response:
        return refused(error)

    @app.exception_handler(RequestValidationError)
    def parameters(_: Request, error: RequestValidationError) -> Response:
        return answer(of_parameters(error))

    @app.exception_handler(HTTPException)
    def routing(_: Request, error: HTTPException) -> Response:
        status = HTTPStatus(error.status_code)
        return answer(
            problem(status, str(error.detail), do="see /v1/openapi.json for what there is"),
            dict(error.headers or {}),
        )

    @app.exception_handler(Exception)
    def unknown(request: Request, error: Exception) -> Response:
        # What it was is for the log only: a traceback may hold what the caller must not see.
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return answer(
            problem(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                "the controller failed to answer",
                means="this is a bug in Elastane; whether the request was done is not known",
                do="repeat it with the same Idempotency-Key; the controller's log says more",
            )
        )
