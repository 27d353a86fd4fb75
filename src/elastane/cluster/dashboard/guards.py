"""Middleware that protects browsers: names of this server, headers of answers, origins and sizes of forms."""

from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elastane.common.untrusted_data import read_number

LARGEST_BODY_BYTES, LONGEST_SIZE = 1 << 20, 9
"""The largest form: a configuration to check, and a few words around it; and the digits of a size."""
HTTP_PORT = 80

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""Only files of this server run or load. No page may be shown inside another one."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with none, browsers hide the origin of forms
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """Middleware that checks the Host header, the origin of changes and the size of bodies.

    Args:
        hosts: the names by which browsers may reach this server; None: any name, because it is encrypted, and
            a browser refuses the certificate under a name that is not its own.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._find_refusal(scope["method"], Headers(scope=scope))
        await (self._app if refusal is None else refusal)(scope, receive, send_guarded)

    def _find_refusal(self, method: str, headers: Headers) -> PlainTextResponse | None:
        host = headers.get("host", "")
        # A foreign name that leads to this address: a page of its owner could read the answers as its own.
        if self._hosts is not None and host not in self._hosts:
            return PlainTextResponse(f"this server is not {host[:100]!r}\n", 421)
        if method in {"GET", "HEAD"}:
            return None
        origin = headers.get("origin")
        if headers.get("sec-fetch-site", "same-origin") != "same-origin" or (
            origin is not None and origin.partition("://")[2] != host
        ):
            return PlainTextResponse("a page of another server asked for a change; nothing was done\n", 403)
        size = read_number(headers.get("content-length", ""), LONGEST_SIZE)
        if size is None or size > LARGEST_BODY_BYTES:
            return PlainTextResponse(f"a form may have {LARGEST_BODY_BYTES} bytes\n", 413)
        return None


def list_host_names(host: str, port: int) -> frozenset[str]:
    """Return the values of the Host header for a server on loopback."""
    names = {host, "localhost", "127.0.0.1", "[::1]", f"[{host}]"}
    with_port = frozenset(f"{name}:{port}" for name in names)
    return with_port | names if port == HTTP_PORT else with_port
