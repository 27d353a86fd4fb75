"""Connections without the secret cannot disturb a real coordinator."""

import asyncio
import contextlib
import itertools
import resource
import signal
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import connect as async_connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from elastane.common.connections.patient_listener import MOST_AT_ONCE
from elastane.run.connections import authentication
from elastane.run.connections.endpoint import build_bearer_header
from elastane.run.coordinator import connections
from elastane.run.nouns.control import AskStatus, decode_answer, encode
from tests.waiting import WAIT_S

from .test_server import SECRET, Served, served

__all__ = ["served"]

UPGRADE = (
    "Host: x",
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)
BEARER = f"Authorization: Bearer {SECRET}"


def open_socket(served: Served) -> socket.socket:
    return socket.create_connection(served.listening.getsockname()[:2], timeout=WAIT_S)


def read_status_line(served: Served, request: bytes) -> bytes:
    """Return the first line of the answer; empty if the connection is closed instead."""
    with open_socket(served) as stranger, contextlib.suppress(ConnectionError):
        stranger.sendall(request)
        return stranger.recv(4096).split(b"\r\n")[0]
    return b""


def make_request(*lines: str | bytes, first: str = "GET / HTTP/1.1") -> bytes:
    encoded = [line if isinstance(line, bytes) else line.encode() for line in (first, *lines, *UPGRADE)]
    return b"\r\n".join([*encoded, b"", b""])


def check_answers(served: Served) -> None:
    with served.connect() as terminal:
        terminal.send(encode(AskStatus()))
        assert decode_answer(terminal.recv(timeout=WAIT_S)).ok


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        pytest.param(make_request(BEARER), b"101", id="the secret"),
        pytest.param(make_request(), b"401", id="no header"),
        pytest.param(make_request("Authorization: Bearer "), b"401", id="an empty secret"),
        pytest.param(make_request(BEARER, BEARER), b"401", id="the secret twice"),
        pytest.param(
            make_request(BEARER, "Authorization: Bearer guess"), b"401", id="the secret and a guess"
        ),
        pytest.param(make_request("Authorization: Basic eDp5"), b"401", id="another scheme"),
        pytest.param(make_request("Authorization: Bearer ü".encode()), b"401", id="beyond ASCII"),
        pytest.param(make_request(b"Authorization: Bearer \xff\xfe"), b"401", id="no UTF-8 either"),
        pytest.param(make_request(BEARER, first="GET /v1/jobs HTTP/1.1"), b"404", id="a wrong path"),
        pytest.param(make_request(first="GET /v1/jobs HTTP/1.1"), b"401", id="a wrong path and no secret"),
        pytest.param(f"GET / HTTP/1.1\r\n{BEARER}\r\n\r\n".encode(), b"426", id="no upgrade"),
        pytest.param(make_request("X: " + "y" * 20_000), b"431", id="a long header"),
        pytest.param(make_request(*["X: y"] * 500), b"431", id="many headers"),
    ],
)
def test_every_invalid_request_gets_its_own_answer(served, request_, status):
    line = read_status_line(served, request_)
    assert line.split()[1:2] == [status], line
    check_answers(served)


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\n\r\n", id="TLS"),
        pytest.param(make_request("X: " + "y" * 200_000), id="200 kB of header"),
        pytest.param(b"x" * 200_000, id="200 kB without a line"),
        pytest.param(make_request(BEARER, first="GET / HTTP/1.0"), id="an old protocol"),
        pytest.param(make_request(BEARER, first="POST / HTTP/1.1"), id="another verb"),
    ],
)
def test_an_invalid_request_is_never_accepted(served, request_):
    line = read_status_line(served, request_)
    assert b" 101 " not in line
    assert b" 500 " not in line
    check_answers(served)


def test_bytes_of_a_stranger_do_not_disturb_other_connections(served):
    @settings(derandomize=True, max_examples=150, suppress_health_check=list(HealthCheck))
    @given(
        texts=st.lists(
            st.one_of(
                st.binary(max_size=200),
                st.sampled_from(
                    [make_request(), make_request()[:40], b"GET / HTTP/1.1\r\n", b"\r\n\r\n", b"\x00" * 100]
                ),
            ),
            max_size=4,
        )
    )
    def fuzz(texts):
        with open_socket(served) as stranger, contextlib.suppress(ConnectionError):
            for words in texts:
                stranger.sendall(words)

    fuzz()
    assert served.process.poll() is None
    check_answers(served)


@settings(derandomize=True, max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    frame=st.one_of(
        st.binary(max_size=300),
        st.text(max_size=300),
        st.integers(1, 100_000).map(lambda levels: '{"type":"AskStatus","x":' + "[" * levels),
        st.sampled_from(['{"type":"WorkerReport"}', '{"type":"AskResize","workers":1e999}', "[]", "null"]),
    )
)
def test_an_invalid_frame_ends_only_its_own_connection(one_coordinator, frame):
    with one_coordinator.connect() as connection, contextlib.suppress(ConnectionClosed):
        connection.send(frame)
        connection.send(encode(AskStatus()))
        connection.recv(timeout=WAIT_S)
    check_answers(one_coordinator)


@pytest.fixture(scope="module")
def one_coordinator(tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("served"))
    served.start()
    yield served
    served.kill()
    served.listening.close()


def limit_descriptors(pid: int, free: int) -> None:
    taken = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    limit = next(itertools.islice((fd for fd in itertools.count() if fd not in taken), free, None))
    _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, most))


@pytest.mark.early
@pytest.mark.processes
def test_unfinished_handshakes_do_not_block_new_connections(served, capfd):
    check_answers(served)
    limit_descriptors(served.process.pid, 30)
    strangers = []
    try:
        for words in itertools.islice(itertools.cycle([b"", b"GET / HTTP/1.1\r\n", b"G"]), 300):
            strangers.append(open_socket(served))
            with contextlib.suppress(ConnectionError):
                strangers[-1].sendall(words)
            if len(strangers) % 100 == 0:
                check_answers(served)
    finally:
        for stranger in strangers:
            stranger.close()
    check_answers(served)
    assert served.process.poll() is None
    texts = capfd.readouterr().err
    assert texts.count("out of system resource") <= 1
    assert len(texts) < 10_000, texts[:2000]


@pytest.mark.early
def test_strangers_that_send_bytes_do_not_displace_a_client_that_arrived_after_them(served):
    check_answers(served)
    limit_descriptors(served.process.pid, MOST_AT_ONCE + 1)
    with contextlib.ExitStack() as stack:
        served.process.send_signal(signal.SIGSTOP)  # so that it accepts all of them in one turn of its loop
        for _ in range(MOST_AT_ONCE - 1):
            stack.enter_context(open_socket(served)).sendall(b"GET / HTTP/1.1\r\n")
        client = stack.enter_context(open_socket(served))
        served.process.send_signal(signal.SIGCONT)
        check_answers(served)
        client.sendall(make_request(BEARER))
        assert client.recv(4096).startswith(b"HTTP/1.1 101")


@pytest.mark.early
def test_a_connection_that_sends_nothing_costs_no_websocket(monkeypatch):
    """A thousand of them a second would leave no time for clients of the run."""
    made = []
    original = authentication.GuardedConnection.__init__

    def note_and_make(self, *args, **options):
        made.append(self)
        original(self, *args, **options)

    async def story():
        listening = socket.create_server(("127.0.0.1", 0))
        address = listening.getsockname()
        url, headers = f"ws://127.0.0.1:{address[1]}", build_bearer_header(SECRET)

        async def greet(connection):
            await connection.send("hello")

        async with authentication.serve_authenticated(greet, listening, SECRET, largest_bytes=1000):
            with contextlib.ExitStack() as stack:
                for _ in range(50):
                    stack.enter_context(socket.create_connection(address, timeout=WAIT_S))
                async with async_connect(url, additional_headers=headers, proxy=None) as client:
                    assert await client.recv() == "hello"

    monkeypatch.setattr(authentication.GuardedConnection, "__init__", note_and_make)
    asyncio.run(story())
    assert len(made) == 1


def test_a_server_that_ends_closes_silent_connections():
    async def story():
        listening = socket.create_server(("127.0.0.1", 0))
        address = listening.getsockname()
        async with authentication.serve_authenticated(print, listening, SECRET, largest_bytes=1000) as server:
            reader, writer = await asyncio.open_connection(*address)
            # The first is accepted before the second is answered.
            with contextlib.suppress(InvalidStatus):
                await async_connect(f"ws://127.0.0.1:{address[1]}", proxy=None)
        async with asyncio.timeout(WAIT_S):
            await server.wait_closed()
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()

    asyncio.run(story())


@pytest.mark.early
@pytest.mark.processes
def test_a_request_that_never_ends_is_closed(served):
    with open_socket(served) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\n")
        slow.settimeout(authentication.DEADLINE_S + WAIT_S)
        with contextlib.suppress(ConnectionError):
            assert slow.recv(100) == b""


def test_a_stranger_that_never_reads_does_not_delay_others(served):
    with open_socket(served) as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        stranger.sendall(make_request())
        check_answers(served)


def test_a_silent_connection_with_the_secret_is_closed(monkeypatch):
    monkeypatch.setattr(connections, "FIRST_MESSAGE_S", 0.2)

    async def check() -> None:
        authenticator, accepted = authentication.Authenticator(SECRET), connections.Connections()
        serving = serve(
            accepted.serve,
            "127.0.0.1",
            0,
            create_connection=authenticator.create_connection,
            process_request=authenticator.authorise,
        )
        async with serving as server, asyncio.timeout(WAIT_S):
            host, port = server.sockets[0].getsockname()
            headers = build_bearer_header(SECRET)
            async with async_connect(f"ws://{host}:{port}", additional_headers=headers, proxy=None) as silent:
                await silent.wait_closed()

    asyncio.run(check())


def test_the_answer_to_a_stranger_does_not_contain_the_secret(served):
    with pytest.raises(InvalidStatus) as refused:
        connect(
            "ws://{}:{}".format(*served.listening.getsockname()),
            additional_headers={"Authorization": "Bearer guess"},
            proxy=None,
        )
    assert SECRET.encode() not in refused.value.response.body
