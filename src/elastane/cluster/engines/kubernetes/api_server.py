"""Requests to the API server, each with a bound of its time and of its answer."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from elastane.cluster.engines.kubernetes.credentials import ApiCredentials
from elastane.cluster.engines.kubernetes.kubeconfig import ApiAccess
from elastane.cluster.engines.kubernetes.refusals import (
    LARGEST_STATUS_BYTES,
    UNAUTHORIZED,
    ApiRefusal,
    decode_refusal,
)
from elastane.cluster.nouns.agents import Away
from elastane.common.errors import BadInput
from elastane.common.extras import require_for_import
from elastane.common.safe_text import fold_text

if TYPE_CHECKING:
    import httpx

LARGEST_ANSWER_BYTES = 32 << 20
"""A page of a list has at most some thousand objects of some kilobytes."""
LARGEST_EVENT_BYTES = 8 << 20
WATCH_S = 60
"""After this time a watch is begun anew, so that one on a dead connection does not stay silent for ever."""
REQUESTS_AT_ONCE = 32
SUCCESS = range(200, 300)
JSON = "application/json"
TYPES = {"PATCH": "application/merge-patch+json"}
"""Types of bodies, by method."""
APPLY = "application/apply-patch+yaml"
"""The type of a body of which the server finds the difference; JSON is YAML."""


class ApiServer:
    """An API server, for one event loop.

    Args:
        answer_s: how long it may take for one answer, in seconds.

    Raises:
        BadInput: its certificates or those of the client cannot be used.
    """

    def __init__(self, access: ApiAccess, answer_s: float) -> None:
        self.access = access
        self.answer_s = answer_s
        self._trust = _build_trust(access)
        self._credentials = ApiCredentials(access)
        self._turns = asyncio.Semaphore(REQUESTS_AT_ONCE)
        self._http: httpx.AsyncClient | None = None

    async def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        body_type: str = "",
    ) -> bytes | ApiRefusal | Away:
        """Send a request, and return the answer; `Away` if no whole answer came in time.

        Args:
            body: is encoded as JSON.
            body_type: empty: JSON, or a merge patch in a PATCH.
        """
        async with self._turns:
            try:
                async with asyncio.timeout(self.answer_s):
                    return await self._ask(method, path, params or {}, body, body_type)
            except TimeoutError:
                return self._make_late()

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> bytes | ApiRefusal | Away:
        """Return the object or the list at a path. A server that fails has not answered."""
        answer = await self.ask("GET", path, params=params)
        if isinstance(answer, ApiRefusal) and answer.is_failure:
            return Away(f"the API server at {self.access.server} fails: {answer.words}")
        return answer

    async def apply(self, path: str, document: object, manager: str) -> bytes | ApiRefusal | Away:
        """Let an object have all fields of a document, as those of ``manager``; 409: others set them."""
        return await self.ask("PATCH", path, params={"fieldManager": manager}, body=document, body_type=APPLY)

    async def _ask(
        self, method: str, path: str, params: Mapping[str, str], body: object, body_type: str
    ) -> bytes | ApiRefusal | Away:
        response = await self._send(method, path, params, body, self.answer_s, body_type)
        if isinstance(response, Away):
            return response
        try:
            content = await _read(response, LARGEST_ANSWER_BYTES)
        finally:
            await response.aclose()
        if isinstance(content, Away) or response.status_code in SUCCESS:
            return content
        return decode_refusal(response.status_code, content)

    @asynccontextmanager
    async def watch(
        self, path: str, params: Mapping[str, str]
    ) -> AsyncIterator[AsyncIterator[bytes] | ApiRefusal | Away]:
        """Open a watch, and yield its lines as long as the context lasts.

        The iteration ends when the watch does, for any reason: this says nothing about the objects.
        """
        wanted = {**params, "watch": "true", "timeoutSeconds": str(WATCH_S)}
        try:
            async with asyncio.timeout(self.answer_s):
                response = await self._send("GET", path, wanted, None, WATCH_S + self.answer_s)
        except TimeoutError:
            response = self._make_late()
        if isinstance(response, Away):
            yield response
            return
        try:
            if response.status_code in SUCCESS:
                yield _iterate_lines(response)
            else:
                content = await _read(response, LARGEST_STATUS_BYTES)
                yield decode_refusal(response.status_code, b"" if isinstance(content, Away) else content)
        finally:
            await response.aclose()

    async def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        body: object,
        silence_s: float,
        body_type: str = "",
    ) -> "httpx.Response | Away":
        """Send a request, again with new credentials if the API server does not know these.

        Args:
            silence_s: how long the API server may send nothing, in seconds.
        """
        client = self._open_client()
        import httpx

        for is_last in (False, True) if self._credentials.can_be_renewed else (True,):
            header = await self._credentials.build_header()
            if isinstance(header, Away):
                return header
            request = client.build_request(
                method,
                f"{self.access.server}{path}",
                params=dict(params),
                content=None if body is None else msgspec.json.encode(body),
                headers=_build_headers(header, "" if body is None else body_type or TYPES.get(method, JSON)),
                timeout=silence_s,
                extensions=self._name_server(),
            )
            try:
                response = await client.send(request, stream=True)
            except (httpx.TransportError, OSError) as error:
                return Away(f"the API server at {self.access.server} does not answer: {_describe(error)}")
            if response.status_code != UNAUTHORIZED or is_last:
                return response
            await response.aclose()
            self._credentials.forget()
        raise AssertionError("the last request has been answered")

    def _name_server(self) -> dict[str, Any]:
        name = self.access.server_name
        return {"sni_hostname": name} if name else {}

    def _open_client(self) -> "httpx.AsyncClient":
        if self._http is None:
            with require_for_import("client", "an engine of kind kubernetes"):
                import httpx

            self._http = httpx.AsyncClient(verify=self._trust, limits=httpx.Limits(keepalive_expiry=30.0))
        return self._http

    def _make_late(self) -> Away:
        return Away(f"the API server at {self.access.server} did not answer within {self.answer_s:g} s")

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http = None


def _build_headers(authorization: str, content_type: str) -> dict[str, str]:
    # Without compression, a short answer cannot become a long one.
    headers = {"Accept": JSON, "Accept-Encoding": "identity", "User-Agent": "elastane"}
    if content_type:
        headers["Content-Type"] = content_type
    return headers | ({"Authorization": authorization} if authorization else {})


async def _read(response: "httpx.Response", most_bytes: int) -> bytes | Away:
    """Return the content of an answer; `Away` if it breaks off or is too long."""
    import httpx

    content = bytearray()
    try:
        async for part in response.aiter_bytes():
            content += part
            if len(content) > most_bytes:
                return Away(f"an answer of the API server has more than {most_bytes} bytes")
    except (httpx.TransportError, httpx.DecodingError, OSError) as error:
        return Away(f"an answer of the API server broke off: {_describe(error)}")
    return bytes(content)


async def _iterate_lines(response: "httpx.Response") -> AsyncIterator[bytes]:
    """Yield the lines of a watch until it ends, breaks off, or has a line that is too long."""
    import httpx

    rest = b""
    try:
        async for part in response.aiter_bytes():
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                yield line
            if len(rest) > LARGEST_EVENT_BYTES:
                return
    except (httpx.TransportError, httpx.DecodingError, OSError):
        return


def _describe(error: Exception) -> str:
    return fold_text(str(error)) or type(error).__name__


def _build_trust(access: ApiAccess) -> ssl.SSLContext | bool:
    """Return the certificates to trust and to show."""
    if access.server.startswith("http://"):
        return True
    try:
        context = ssl.create_default_context(cadata=access.authorities or None)
        if access.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if access.certificate:
            _load_certificate(context, access)
    except (ssl.SSLError, ValueError) as error:
        raise BadInput(f"the certificates for {access.server} cannot be used: {error}") from error
    return context


def _load_certificate(context: ssl.SSLContext, access: ApiAccess) -> None:
    """Let a client show its certificate. The library reads files only, and the key belongs on no disk."""
    descriptor = os.memfd_create("kubernetes-client", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, f"{access.certificate}\n{access.key}\n".encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
