"""Middleware that refuses ambiguous requests, other protocols and large bodies."""

from collections import Counter
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elastane.cluster.controller.rest.problems import make_problem, make_problem_response
from elastane.common.bodies import Problem

ONCE = frozenset(
    {
        b"authorization",
        b"content-length",
        b"content-type",
        b"host",
        b"idempotency-key",
        b"if-match",
        b"last-event-id",
    }
)
"""Headers that this API reads. Readers differ in which of two values counts."""
LARGEST_HEADERS_BYTES = 64 * 1024
"""Limit of all headers together. The server limits only headers that arrive in pieces."""


class Framing:
    """Middleware that passes a request on if it is plain HTTP and has each header of `ONCE` at most once."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = refuse_framing(scope["headers"]) if scope["type"] == "http" else None
        await (self._app if refusal is None else make_problem_response(refusal))(scope, receive, send)


def refuse_framing(headers: list[tuple[bytes, bytes]]) -> Problem | None:
    """Return why a request with these headers is refused; None: it is not. Names are in lower case."""
    size_bytes = sum(len(name) + len(value) for name, value in headers)
    if size_bytes > LARGEST_HEADERS_BYTES:
        return make_problem(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"the headers have {size_bytes} bytes; the limit is {LARGEST_HEADERS_BYTES}",
            means="nothing was done",
            do="send fewer or shorter headers",
        )
    counts = Counter(name for name, _ in headers)
    if twice := sorted(name.decode() for name in ONCE if counts[name] > 1):
        return make_problem(
            HTTPStatus.BAD_REQUEST,
            f"the header {twice[0]} appears {counts[twice[0].encode()]} times",
            means="nothing was done: programs differ in which of the values they use",
            do="send it once",
            field=f"header.{twice[0]}",
        )
    if any(name == b"upgrade" and b"websocket" in value.lower() for name, value in headers):
        return make_problem(
            HTTPStatus.BAD_REQUEST,
            "this API has no WebSockets",
            means="nothing was done",
            do="send it without Upgrade; GET /v1/watch is a stream of server-sent events",
            field="header.upgrade",
        )
    return None


CODE_PATH = "/v1/code/"


class TooLarge(Exception):
    pass


class SizeLimit:
    """Middleware that refuses larger bodies, by their announced or their received length.

    It protects the controller's memory. Code is not kept there, so it may be larger.
    """

    def __init__(self, app: ASGIApp, largest: int, largest_code: int) -> None:
        self._app = app
        self._largest = largest
        self._largest_code = largest_code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_code = scope["method"] == "PUT" and scope["path"].startswith(CODE_PATH)
        largest = self._largest_code if is_code else self._largest
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if not announced.isdigit() or int(announced) > largest:
            await self._refuse(scope, receive, send, largest)
            return
        taken = 0

        async def receive_and_count() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > largest:
                raise TooLarge
            return message

        try:
            await self._app(scope, receive_and_count, send)
        except TooLarge:
            # Bodies are read before an answer begins, so this one can still be sent.
            await self._refuse(scope, receive, send, largest)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, largest: int) -> None:
        refusal = make_problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the body has more than {largest} bytes",
            means="nothing was done",
            do="send less; data is not sent to the controller, and code with elastane submit --ship-code",
        )
        await make_problem_response(refusal)(scope, receive, send)
