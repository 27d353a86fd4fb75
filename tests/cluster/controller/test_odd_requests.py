"""Invalid requests, ambiguous requests and requests of another protocol are refused with a problem."""

import itertools
import json
import socket
from urllib.parse import urlsplit

import h11
import pytest

from elastane.cluster.controller.rest.app import describe_api
from tests.waiting import WAIT_S

PROBLEM = "application/problem+json"
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE")


@pytest.fixture
def asked(api, served):
    """Send bytes over a new connection; return status, headers and body of the answer."""
    with served(api) as url:
        at = urlsplit(url)

        def ask(raw):
            with socket.create_connection((at.hostname, at.port), timeout=WAIT_S) as line:
                line.sendall(raw)
                reader = h11.Connection(h11.CLIENT)
                reader.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
                reader.send(h11.EndOfMessage())
                status, headers, body = 0, {}, b""
                while True:
                    event = reader.next_event()
                    match event:
                        case h11.NEED_DATA:
                            reader.receive_data(line.recv(65536))
                        case h11.InformationalResponse() | h11.Response():
                            status = event.status_code
                            headers = {name.decode(): value.decode() for name, value in event.headers}
                        case h11.Data():
                            body += event.data
                        case _:
                            return status, headers, body

        yield ask


def request(token, *headers, verb="GET /v1/me", body=b""):
    lines = [f"{verb} HTTP/1.1", "Host: x", f"Authorization: Bearer {token}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def refused(answer, status=400):
    """Return the problem of the answer."""
    assert answer[0] == status, answer
    assert answer[1]["content-type"] == PROBLEM
    problem = json.loads(answer[2])
    assert problem["status"] == status
    assert problem["detail"]
    assert problem["do"]
    return problem


UPGRADE = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")


WEB_SOCKETS = (
    (*UPGRADE, "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="),
    UPGRADE,
    (*UPGRADE, "Sec-WebSocket-Key: x" * 3),
    (*UPGRADE, "Sec-WebSocket-Extensions: " + ";" * 5000),
    ("upgrade: WebSocket", "connection: keep-alive, upgrade", "sec-websocket-version: -1"),
    ("Upgrade: h2c, websocket", "Connection: upgrade"),
    ("Upgrade: websocket",),
)


@pytest.mark.parametrize("path", ["/v1/me", "/v1/watch", "/v1/nowhere", "/"])
def test_a_websocket_is_refused_on_every_path(api, asked, caplog, path):
    token = api.token()
    for headers in WEB_SOCKETS:
        problem = refused(asked(request(token, *headers, verb=f"GET {path}")))
        assert "WebSocket" in problem["detail"], headers
        assert "/v1/watch" in problem["do"], headers
        assert not caplog.records, headers


def test_an_offer_of_http_2_is_ignored(api, asked, caplog):
    headers = ("Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABkAAQAAP__")
    assert asked(request(api.token(), *headers))[0] == 200
    assert not caplog.records


@pytest.mark.parametrize(
    "header",
    [
        "Authorization: Bearer ela_other",
        "Idempotency-Key: a\r\nIdempotency-Key: b",
        "If-Match: *\r\nIf-Match: *",
        "Last-Event-ID: 1\r\nLast-Event-ID: 2",
        "Content-Type: a\r\ncontent-type: b",
    ],
)
def test_a_repeated_header_is_refused_by_name(api, asked, header):
    name = header.split(":")[0].lower()
    assert name in refused(asked(request(api.token(), header)))["detail"]


@pytest.mark.parametrize(
    "raw",
    [
        b"no HTTP\r\n\r\n",
        b"GET /v1/me HTTP/1.1\r\n\r\n",
        b"GET /v1/me HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET /v1/\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/me HTTP/1.1\r\nHost: x\r\nX: \0\r\n\r\n",
        b"GET /v1/me HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n",
        b"GET /v1/me HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 1e3\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
    ],
)
def test_invalid_http_is_answered_with_a_problem(asked, raw, caplog):
    answer = asked(raw)
    refused(answer, answer[0])
    assert answer[0] in {400, 413, 431, 501}
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/jobs/%FF",
        "/v1/jobs/%00",
        "/v1/jobs/%F0%9F%92%A9",
        "/v1/jobs/%2e%2e%2fme",
        "/v1/jobs/a%0d%0aX-Evil:1",
        "/v1/jobs?prefix=%FF%FE",
        "/v1/jobs?after=%C3%28",
        "/v1/jobs?team=%00",
        "/v1/%ED%A0%80",
        "/v1/jobs/" + "x" * 8000,
        "/v1/jobs?limit=" + "9" * 5000,
        "*",
        "http://evil.example/v1/jobs/x",
    ],
)
def test_a_path_with_invalid_bytes_is_answered_with_a_problem(api, asked, path, caplog):
    answer = asked(request(api.token(), verb=f"GET {path}"))
    refused(answer, answer[0])
    assert answer[0] in {400, 404, 422}
    assert len(answer[2]) < 4000
    assert "x-evil" not in answer[1]
    assert not caplog.records


@pytest.mark.parametrize("text", ["\ud800", "\udcff\ud800", "x\0y"])
def test_a_text_that_databases_refuse_is_refused(api, text):
    body = json.dumps({"user": "ada", "role": "viewer", "team": "vision", "note": text}).encode()
    assert api.user("operator").ask("POST", "/tokens", raw=body).status_code in {400, 422}


def test_an_unsupported_method_is_answered_with_the_supported_ones(api):
    operator = api.user("operator")
    for template, verbs in describe_api()["paths"].items():
        path = template.removeprefix("/v1").replace("{token}", "tok-0123456789ab")
        path = path.replace("{name}", "x").replace("{job}", "x").replace("{node}", "x")
        known = {verb.upper() for verb in verbs}
        for method in set(METHODS) - known:
            refusal = operator.ask(method, path)
            assert refusal.status_code == 405, (method, path)
            assert set(refusal.headers["Allow"].split(", ")) == known, (method, path)
            assert refusal.headers["Content-Type"] == PROBLEM
    assert operator.delete("/openapi.json").headers["Allow"] == "GET"


def test_requests_without_a_token_do_not_fill_the_log(api, asked, caplog):
    for _ in itertools.repeat(None, 5):
        asked(request(api.token(), *UPGRADE))
    assert not caplog.records
