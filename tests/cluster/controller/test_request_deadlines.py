"""A connection without a request delays no other client, and is not logged as a failure."""

import io
import socket
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from elastane.cluster.controller import server
from elastane.cluster.controller.code_files import CodeFiles
from elastane.cluster.controller.rest import connections
from elastane.cluster.controller.rest.connections import build_waiting_rules
from elastane.cluster.controller.store import history
from elastane.common.connections.unproven_connections import AdmissionRules
from elastane.run.connections.run_certificate import CERTIFICATE, build_client_context, create_certificate
from elastane.run.machines.joining.code_archive import write_archive
from elastane.run.machines.joining.shipped_code import list_code
from elastane.run.nouns.rundir import RunDir
from tests.waiting import WAIT_S

SOON_S = 0.3


@pytest.fixture
def connected(api, served, monkeypatch):
    """Connect to a server with a short deadline for requests."""
    monkeypatch.setattr(connections, "ARRIVE_S", SOON_S)
    with served(api) as url:
        at = urlsplit(url)

        @contextmanager
        def connection():
            with socket.create_connection((at.hostname, at.port), timeout=WAIT_S) as line:
                yield line

        yield connection


def request(api, *headers, verb="GET /v1/me"):
    lines = [f"{verb} HTTP/1.1", "Host: x", f"Authorization: Bearer {api.token()}", *headers, "", ""]
    return "\r\n".join(lines).encode()


def silent(line):
    """Return whether the connection receives nothing within its timeout, not even its end."""
    try:
        line.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return True
    return False


@pytest.mark.parametrize("begun", ["", "GET /v1/me HTTP/1.1\r\nHost: x\r\nX-Long: "])
def test_a_connection_without_a_request_is_closed_at_its_deadline(connected, begun):
    with connected() as line:
        line.sendall(begun.encode())
        assert line.recv(100) == b""


def test_a_request_that_arrives_byte_by_byte_is_closed_at_its_deadline(connected):
    def sends_on():
        for _ in range(100):
            line.sendall(b"x")
            silent(line)

    with connected() as line:
        line.settimeout(SOON_S / 10)
        with pytest.raises(ConnectionError):
            sends_on()


def test_a_body_that_does_not_arrive_does_not_count_as_a_failure_of_the_controller(api, connected, caplog):
    begun = request(api, "Content-Length: 100", verb="POST /v1/jobs") + b'{"name": '
    whole = request(api)
    with connected() as line:
        line.sendall(begun)
        assert line.recv(100) == b""
    with connected() as line:
        line.sendall(begun)
    with connected() as line:
        line.sendall(whole)
        assert line.recv(1000).startswith(b"HTTP/1.1 200")
    assert not caplog.records


def test_a_connection_serves_several_requests_and_answers_may_take_longer(api, connected):
    def answer():
        read = b""
        while not read.endswith((b"}", b"\n\n\r\n")):
            read += line.recv(1000)
        return read

    # A token takes time to make, and the connection must not wait for it.
    asked, watched = request(api), request(api, verb="GET /v1/watch")
    with connected() as line:
        for _ in range(3):
            line.settimeout(WAIT_S)
            line.sendall(asked)
            assert answer().startswith(b"HTTP/1.1 200")
            line.settimeout(1.5 * SOON_S)
            assert silent(line)
        line.settimeout(WAIT_S)
        line.sendall(watched)
        assert b"from here on" in answer()
        line.settimeout(2 * SOON_S)
        assert silent(line)
        line.settimeout(WAIT_S)
        happen(api.store, "seen")
        assert b"seen" in answer()


def begin_code(api, tmp_path, token):
    """Return the archive of some code, and the head of the request that sends it."""
    api.controller.code = CodeFiles(tmp_path)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text("x = 1\n")
    archive = io.BytesIO()
    digest = write_archive(tmp_path / "project", list_code(tmp_path / "project"), archive)
    content = archive.getvalue()
    lines = (
        f"PUT /v1/code/{digest} HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {token}",
        f"Content-Length: {len(content)}",
    )
    return content, "\r\n".join((*lines, "", "")).encode()


def test_code_may_arrive_more_slowly_than_other_bodies(api, connected, tmp_path):
    content, head = begin_code(api, tmp_path, api.token())
    with connected() as line:
        line.sendall(head + content[:20])
        line.settimeout(3 * SOON_S)
        assert silent(line)
        line.sendall(content[20:])
        line.settimeout(WAIT_S)
        assert line.recv(1000).startswith(b"HTTP/1.1 204")


def test_code_without_a_token_gets_no_more_time(api, connected, tmp_path):
    content, head = begin_code(api, tmp_path, "ela_unknown")
    with connected() as line:
        line.sendall(head + content[:20])
        answered = b""
        while piece := line.recv(5000):
            answered += piece
        assert answered.startswith(b"HTTP/1.1 401")


def happen(store, message):
    with store.begin_write() as tx:
        history.append_event(tx, "node.drain", message, 0.0)


def ended(line):
    line.settimeout(WAIT_S)
    try:
        return line.recv(1) == b""
    except ConnectionError:
        return True


@pytest.fixture
def few(monkeypatch):
    """Let few connections wait for a request."""
    rules = AdmissionRules(most=5, deadline_s=30, least_s=0, descriptor_ceiling=1 << 20)
    monkeypatch.setattr(server, "build_waiting_rules", lambda _: rules)


@pytest.fixture
def certificate(tmp_path):
    """Return a file with a certificate and its key."""
    create_certificate(RunDir(tmp_path))
    return str(tmp_path / CERTIFICATE)


@pytest.mark.usefixtures("few")
def test_the_oldest_of_too_many_waiting_connections_is_closed_and_requests_are_answered(api, served):
    with served(api) as url, ExitStack() as crowd:
        at = urlsplit(url).hostname, urlsplit(url).port
        watching = crowd.enter_context(socket.create_connection(at, timeout=WAIT_S))
        watching.sendall(request(api, verb="GET /v1/watch"))
        assert watching.recv(1000).startswith(b"HTTP/1.1 200")
        silent_ones = [crowd.enter_context(socket.create_connection(at)) for _ in range(20)]
        with socket.create_connection(at, timeout=WAIT_S) as line:
            line.sendall(request(api))
            assert line.recv(1000).startswith(b"HTTP/1.1 200")
        assert all(ended(line) for line in silent_ones[:15])
        happen(api.store, "seen")
        seen = b""
        while b"seen" not in seen:
            seen += watching.recv(1000)


@pytest.mark.usefixtures("few")
def test_connections_that_begin_no_handshake_count_too(api, served, certificate):
    with served(api, certificate=certificate, key=certificate) as url, ExitStack() as crowd:
        at = urlsplit(url).hostname, urlsplit(url).port
        silent_ones = [crowd.enter_context(socket.create_connection(at)) for _ in range(20)]
        context = build_client_context(Path(certificate).read_text())
        with context.wrap_socket(socket.create_connection(at, timeout=WAIT_S)) as line:
            line.sendall(request(api))
            assert line.recv(1000).startswith(b"HTTP/1.1 200")
            assert all(ended(silent) for silent in silent_ones[:15])
            line.sendall(request(api))
            assert line.recv(1000)


def test_a_handshake_that_does_not_begin_is_closed_at_the_deadline(api, served, certificate, monkeypatch):
    monkeypatch.setattr(connections, "ARRIVE_S", SOON_S)
    with served(api, certificate=certificate, key=certificate) as url:
        at = urlsplit(url).hostname, urlsplit(url).port
        with socket.create_connection(at, timeout=WAIT_S) as line:
            assert line.recv(100) == b""


def test_connections_leave_descriptors_for_the_store_and_the_jobs():
    for limit in (64, 256, 1024, 1 << 20):
        rules = build_waiting_rules(limit)
        assert 0 < rules.most <= limit // 2
        assert limit // 2 <= rules.descriptor_ceiling < limit
