"""A connection to a controller: requests with its token, repeated while it restarts, and its refusals."""

import os
import re
import ssl
import time
import uuid
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import TracebackType
from typing import IO, Any, Self, TypeVar

import msgspec

from elastane.common.bodies import Page, Problem
from elastane.common.connections.controller_context import Context, check_context
from elastane.common.errors import BadInput, ElastaneError
from elastane.common.exit_codes import ExitCode
from elastane.common.extras import require_for_import
from elastane.common.field_checks import check_name
from elastane.common.untrusted_data import Decoder, Malformed

with require_for_import("client", "to talk to a cluster"):
    import httpx

T = TypeVar("T")

READING_POSTS = ("/config/diff", "/policy/check")
"""Ends of paths where a POST only reads."""
CONTROLLER_TYPES = ("application/json", "text/event-stream")
"""Content types of a controller, perhaps of another version; any other type is not from a controller."""
RETRIED_STATUSES = {429, 503}
"""Status codes after which a request is repeated later."""
PAUSE_S = 0.2
PRINTABLE = re.compile(r"[!-~]+")
FIRST_CONTACT_S = 2.0
"""How long a read is retried at an address that refuses connections and has never answered."""
BYTES = "application/octet-stream"
PIECE_BYTES = 1 << 18
LONGEST_CHECK_S = 120.0
"""The controller checks what it got before it answers."""
QUIET_S = 60.0
"""A stream that has sent nothing for this long, not even a comment, is broken."""


class RequestRefused(BadInput):
    """The controller refused the request; ``problem`` has its reason."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(problem.detail, means=problem.means, do=problem.do)


class NotFound(RequestRefused):
    """The object does not exist, or the token may not see it."""

    exit_code = ExitCode.NOT_FOUND


class ControllerUnreachable(ElastaneError):
    """The controller did not answer in time."""


class IncompatibleAnswer(ElastaneError):
    """The answer does not have the format of this version."""


class ControllerConnection:
    """A connection to a controller, for one thread at a time.

    Args:
        token: ``ela_...``.
        verify: whether to verify certificates, the path of the certificate to trust, or a context that does.
        timeout_s: for a request with all its retries, in seconds. Requests are retried while the controller
            restarts. Requests that change something carry a key, so that the controller runs them once. Reads
            from an address that refuses connections and has never answered fail after `FIRST_CONTACT_S`.

    Raises:
        BadInput: the token is malformed, or ``verify`` is not a certificate.
    """

    def __init__(
        self, url: str, token: str, *, verify: bool | str | ssl.SSLContext = True, timeout_s: float = 30.0
    ) -> None:
        self._timeout_s = timeout_s
        self._answered = False
        self._http = httpx.Client(
            base_url=f"{url.rstrip('/')}/v1",
            headers={"Authorization": f"Bearer {_check_token(token)}"},
            verify=_load_trust(url, verify),
            # A proxy could read an unencrypted request with its token, and cannot reach this loopback.
            trust_env=not url.startswith("http://"),
            timeout=timeout_s,
        )

    @classmethod
    def from_context(cls, context: Context, *, timeout_s: float = 30.0) -> Self:
        """Return a connection to the controller of a context.

        Raises:
            BadInput: its address is not encrypted, its certificate is missing, or its token is malformed.
        """
        check_context(context)
        return cls(context.url, context.token, verify=context.certificate or True, timeout_s=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def list_pages(self, path: str, kind: type[Page[T]], params: dict[str, Any]) -> Iterator[T]:
        after = ""
        while True:
            page = self.request("GET", path, kind, params=params | ({"after": after} if after else {}))
            yield from page.items
            if not (after := page.after):
                return

    def request(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        params: dict[str, Any] | None = None,
        body: object = None,
        key: str = "",
    ) -> T:
        answer = self.send(method, path, params=params, body=body, key=key)
        return decode_answer(answer, answer.content, kind)

    def send_change(self, method: str, path: str, *, body: object = None, if_match: str = "") -> None:
        """Send a change; check only that its answer comes from a controller."""
        answer = self.send(method, path, body=body, if_match=if_match)
        if answer.status_code != httpx.codes.NO_CONTENT:
            decode_answer(answer, answer.content, dict)

    def send(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, Any] | None = None,
        body: object = None,
        key: str = "",
        if_match: str = "",
    ) -> httpx.Response:
        """Send a request, with retries while the controller is away or busy, and return the response.

        Raises:
            BadInput: the key or a text in the body cannot be sent.
            RequestRefused: the controller refused the request.
            ControllerUnreachable: the controller did not answer in time, or its certificate is not trusted.
        """
        changes = _is_change(method, path)
        if key and not PRINTABLE.fullmatch(key):
            raise BadInput(
                f"{key!r} is not a valid key",
                means="nothing was sent",
                do="use ASCII characters without spaces",
            )
        headers = {"Idempotency-Key": key or str(uuid.uuid4())} if changes else {}
        headers |= {"If-Match": if_match} if if_match else {}
        content = None if body is None else _encode_body(body)
        headers |= {} if body is None else {"Content-Type": "application/json"}
        named = _drop_empty(params)
        return self._repeat(
            lambda: self._http.request(method, path, params=named, content=content, headers=headers),
            changes=changes,
        )

    def upload(
        self,
        path: str,
        content: IO[bytes],
        *,
        params: dict[str, Any] | None = None,
        sent: Callable[[int], object] = id,
    ) -> None:
        """Send the content of a file with PUT, which may take longer than other requests; see `send`.

        Args:
            content: opened for reading.
            sent: is called with the number of bytes that were sent, again and again.
        """
        size_bytes = content.seek(0, os.SEEK_END)

        def read_pieces() -> Iterator[bytes]:
            content.seek(0)
            while piece := content.read(PIECE_BYTES):
                yield piece
                sent(content.tell())

        headers = {"Content-Type": BYTES, "Content-Length": str(size_bytes)}
        named, timeout = (
            _drop_empty(params),
            httpx.Timeout(self._timeout_s, read=LONGEST_CHECK_S, write=QUIET_S),
        )
        self._repeat(
            lambda: self._http.put(
                path, params=named, content=read_pieces(), headers=headers, timeout=timeout
            ),
            changes=True,
        )

    def download(self, path: str, to: IO[bytes], at_most_bytes: int) -> None:
        """Write an answer of bytes to an empty file, which may take longer than other requests; see `send`.

        Raises:
            IncompatibleAnswer: it has more than this many bytes.
        """
        timeout = httpx.Timeout(self._timeout_s, read=QUIET_S)

        def read_answer() -> httpx.Response:
            to.seek(0)
            to.truncate()
            with self._http.stream("GET", path, timeout=timeout) as answer:
                if not answer.is_success:
                    answer.read()
                    return answer
                # Not decoded: a small answer could become a large one.
                for piece in answer.iter_raw():
                    to.write(piece)
                    if to.tell() > at_most_bytes:
                        raise _make_incompatible(answer, f"it has more than {at_most_bytes} bytes")
                return answer

        self._repeat(read_answer, changes=False)

    def _repeat(self, ask: Callable[[], httpx.Response], *, changes: bool) -> httpx.Response:
        """Ask until the controller answers, and return a successful answer; see `send`."""
        began = time.monotonic()
        while True:
            pause_s = PAUSE_S
            try:
                answer = ask()
            except httpx.TransportError as error:
                if _is_about_trust(error):
                    raise self._make_untrusted(error) from error
                if time.monotonic() + pause_s > began + self._get_patience_s(error, changes=changes):
                    raise self._make_unreachable(error, changes=changes) from error
            else:
                self._answered = True
                # Redirects are not followed, because the token is only for this address.
                if answer.is_success:
                    return answer
                pause_s = _read_retry_after_s(answer)
                if (
                    answer.status_code not in RETRIED_STATUSES
                    or time.monotonic() + pause_s > began + self._timeout_s
                ):
                    raise _decode_refusal(answer)
            time.sleep(pause_s)

    def follow(
        self,
        path: str,
        kind: type[T],
        *,
        params: dict[str, Any],
        after: int | None,
        is_over: Callable[[], bool] = bool,
    ) -> Iterator[T]:
        """Yield the values of a stream as they happen, without end, also across restarts of the controller.

        Args:
            after: number of the last known value; None: begin with the next value.
            is_over: returns whether to end. It is asked at least every quarter of a minute.

        Raises:
            RequestRefused: the token may not read the stream or has become invalid, or there were too many
                readers for the whole timeout.
            ControllerUnreachable: the controller did not answer for the whole timeout.
        """
        broken_since: float | None = None
        while not is_over():
            try:
                for seen, value in self._read_stream(path, kind, params, after):
                    after, broken_since = seen, None
                    if value is not None:
                        yield value
                    if is_over():
                        return
            except RequestRefused as refusal:
                broken_since = broken_since or time.monotonic()
                tried_s = time.monotonic() - broken_since
                if refusal.problem.status not in RETRIED_STATUSES or tried_s > self._timeout_s:
                    raise
            except httpx.TransportError as error:
                if _is_about_trust(error):
                    raise self._make_untrusted(error) from error
                broken_since = broken_since or time.monotonic()
                if time.monotonic() - broken_since > self._get_patience_s(error, changes=False):
                    raise self._make_unreachable(error, changes=False) from error
            time.sleep(PAUSE_S)

    def _read_stream(
        self, path: str, kind: type[T], params: dict[str, Any], after: int | None
    ) -> Iterator[tuple[int | None, T | None]]:
        """Yield the values of one stream until it ends.

        Each comes with the number to continue after. None in place of a value: the stream is alive.
        """
        params = params | ({} if after is None else {"after": after})
        timeout = httpx.Timeout(self._timeout_s, read=QUIET_S)
        with self._http.stream("GET", path, params=params, timeout=timeout) as answer:
            self._answered = True
            if not answer.is_success:
                answer.read()
                raise _decode_refusal(answer)
            value = None
            for line in _iterate_lines(answer):
                if line.startswith(b"id: "):
                    after = decode_answer(answer, line.removeprefix(b"id: "), int)
                elif line.startswith(b"data: "):
                    value = decode_answer(answer, line.removeprefix(b"data: "), kind)
                elif not line:
                    # Yield a value only when it is whole: if a stream breaks within one, the next stream
                    # sends it again. The first block has a number only, so that no later value is missed.
                    yield after, value
                    value = None

    def _get_patience_s(self, error: httpx.TransportError, *, changes: bool) -> float:
        """Return how long a request is retried after this error, in seconds."""
        # A controller that has answered before is restarting. One that has never answered does not exist or
        # is starting. A change waits in both cases, so that the user does not have to repeat it.
        first_contact = not changes and not self._answered and isinstance(error, httpx.ConnectError)
        return min(FIRST_CONTACT_S, self._timeout_s) if first_contact else self._timeout_s

    def _make_unreachable(self, error: httpx.TransportError, *, changes: bool) -> ControllerUnreachable:
        unsure = "; your request may or may not have taken effect" if changes else ""
        return ControllerUnreachable(
            f"the controller at {self._http.base_url} does not answer ({error})",
            means=f"jobs continue without it{unsure}",
            do="check that it runs (`elastane up`) and that the address is correct, then try again",
        )

    def _make_untrusted(self, error: httpx.TransportError) -> ControllerUnreachable:
        return ControllerUnreachable(
            f"the certificate of {self._http.base_url} is not trusted ({error})",
            means="another server may be answering; nothing was sent, not even your token",
            do="name its authority (`elastane login URL --ca FILE`), and use the host of the certificate",
        )


def _check_token(token: str) -> str:
    """Return a token if a header can hold it.

    Raises:
        BadInput: the token is malformed; the error does not quote it, because part of it may be a secret.
    """
    if not PRINTABLE.fullmatch(token):
        raise BadInput(
            "the token is empty"
            if not token
            else "the token has spaces, line breaks or other invalid characters",
            means="nothing was sent",
            do="copy the whole token, which begins with ela_, and nothing else",
        )
    return token


def _encode_body(body: object) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        raise BadInput(
            f"{error.object[:40]!r} is not valid text",
            means="a file name or a variable may contain such bytes; nothing was sent",
            do="encode it as UTF-8",
        ) from error


def _read_retry_after_s(answer: httpx.Response) -> float:
    """Return the seconds of ``Retry-After``; a default if it is missing or, as proxies send it, a date."""
    value = answer.headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdigit() else PAUSE_S


def check_path_name(name: str) -> str:
    """Return a name if it can be a part of a path; another text could change the path."""
    check_name("name", name)
    return name


def _is_change(method: str, path: str) -> bool:
    """Return whether a request may change something; otherwise it is a read."""
    return method != "GET" and not path.endswith(READING_POSTS)


@lru_cache(maxsize=64)
def _get_decoder(kind: Any) -> Decoder[Any]:
    return Decoder(kind)


def decode_answer(answer: httpx.Response, content: bytes | str, kind: type[T]) -> T:
    """Return the content of an answer."""
    try:
        decoded: T = _get_decoder(kind)(content)  # type: ignore[arg-type]
    except Malformed as error:
        raise _make_incompatible(answer, str(error)) from error
    return decoded


def _iterate_lines(answer: httpx.Response) -> Iterator[bytes]:
    """Yield the lines of a stream, split at line feeds only, because texts may hold other line breaks."""
    rest = b""
    for part in answer.iter_bytes():
        *whole, rest = (rest + part).split(b"\n")
        yield from whole


def read_header(answer: httpx.Response, name: str) -> str:
    """Return a header of an answer."""
    if name not in answer.headers:
        raise _make_incompatible(answer, f"it has no {name}")
    found: str = answer.headers[name]
    return found


def _make_incompatible(answer: httpx.Response, why: str) -> IncompatibleAnswer:
    done = "your request was done, but " if _is_change(answer.request.method, answer.url.path) else ""
    if not answer.headers.get("Content-Type", "").startswith(CONTROLLER_TYPES):
        return IncompatibleAnswer(
            f"{answer.url} gave an answer that does not come from a controller ({why})",
            means="another server has answered; your request may not have been done",
            do="check the address, and any proxies on the way",
        )
    return IncompatibleAnswer(
        f"{answer.url} gave an answer that this version does not understand ({why})",
        means=f"{done}the controller runs another version of elastane",
        do="install the version of the controller; compare elastane --version and GET /v1/version",
    )


def _is_about_trust(error: BaseException | None) -> bool:
    """Return whether an error is about a certificate that is not trusted; a retry would not help."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _load_trust(url: str, verify: bool | str | ssl.SSLContext) -> bool | ssl.SSLContext:
    """Return the certificates to trust, as httpx takes them."""
    if url.startswith("http://"):
        # Nothing to verify: loading the certificates of the machine takes 70 ms, most of a short command.
        return False
    if not isinstance(verify, str):
        return verify
    try:
        return ssl.create_default_context(cafile=verify)
    except OSError as error:
        raise BadInput(
            f"{verify} cannot be read as a certificate ({error})",
            means="the controller cannot be authenticated; nothing was sent",
            do="name a PEM file with the cluster's certificate authority or its certificate",
        ) from error


def trust_certificate(url: str, certificate: str) -> bool | ssl.SSLContext:
    """Return what trusts the server at an address if it has this very certificate.

    Args:
        certificate: in PEM; it need not name the address. Empty: the authorities of this machine count.
    """
    if not certificate or url.startswith("http://"):
        return True
    try:
        context = ssl.create_default_context(cadata=certificate)
    except ssl.SSLError as error:
        raise BadInput(f"the certificate of the controller cannot be read ({error})") from error
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _drop_empty(params: dict[str, Any] | None) -> dict[str, Any]:
    """Return the parameters that have a value."""
    return {name: value for name, value in (params or {}).items() if value not in ("", None, [])}


def _decode_refusal(answer: httpx.Response) -> RequestRefused:
    try:
        problem: Problem = _get_decoder(Problem)(answer.content)
    except Malformed:
        # A proxy between here and the controller has answered.
        problem = Problem(
            type="about:blank",
            title=answer.reason_phrase,
            status=answer.status_code,
            detail=f"{answer.url} answered {answer.status_code} {answer.reason_phrase}",
            means="this answer does not come from the controller",
            do="check the address, and any proxies on the way",
        )
    return (NotFound if problem.status == httpx.codes.NOT_FOUND else RequestRefused)(problem)
