"""The metrics of a job's run come from an address that the job may have written itself."""

import asyncio
import socket
import threading
from contextlib import suppress
from secrets import token_hex

import pytest

from elastane.cluster.controller.rest.metrics import fetch_run_page
from elastane.common.untrusted_data import Malformed
from elastane.run.nouns.rundir import RunDir
from tests.waiting import WAIT_S

SECRET = token_hex(8)
PAGE = b"# HELP elastane_run_step Last committed step\nelastane_run_step 7.0\n"


@pytest.fixture
def serve_once(tmp_path):
    """Return a function that answers one request, and returns a run directory that leads there."""
    ends = []

    def serve(head: bytes, body: bytes = b"", *, silent: bool = False):
        listening = socket.create_server(("127.0.0.1", 0))
        closed = threading.Event()

        def answer():
            with listening, listening.accept()[0] as connection:
                asked = connection.recv(65536)
                assert asked.startswith(b"GET /metrics ")
                assert f"Bearer {SECRET}".encode() in asked
                with suppress(OSError):  # the client may close early
                    connection.sendall(head + body)
                if silent:
                    closed.wait(WAIT_S)

        thread = threading.Thread(target=answer)
        thread.start()
        ends.append((closed, thread))
        run_dir = RunDir(tmp_path)
        run_dir.secret.write_text(SECRET)
        run_dir.endpoint.write_text(f'{{"host": "127.0.0.1", "port": {listening.getsockname()[1]}}}')
        return run_dir

    yield serve
    for closed, thread in ends:
        closed.set()
        thread.join()


def head(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nLocation: /elsewhere\r\n\r\n".encode()


def test_the_page_of_a_coordinator_comes_back_as_it_is(serve_once):
    assert asyncio.run(fetch_run_page(serve_once(head(PAGE), PAGE), WAIT_S)) == PAGE


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"node_cpu_seconds_total 1\n",
        b"elastane_run_step 1\nsecret 2\n",
        b"elastane_run_step 1",
        b"elastane_run_step \xff\n",
        b"elastane_run_step 1\n" * 20_000,
    ],
    ids=["empty", "foreign", "partly foreign", "torn", "binary", "large"],
)
def test_nothing_but_metrics_of_a_run_comes_back(page, serve_once):
    with pytest.raises(Malformed, match="not a page of metrics"):
        asyncio.run(fetch_run_page(serve_once(head(page), page), WAIT_S))


@pytest.mark.parametrize("status", ["302 Found", "401 Unauthorized", "500 Oops"])
def test_a_redirect_is_not_followed(status, serve_once):
    with pytest.raises(Malformed, match=status[:3]):
        asyncio.run(fetch_run_page(serve_once(head(PAGE, status), PAGE), WAIT_S))


def test_a_server_that_does_not_go_on_is_left_in_time(serve_once):
    with pytest.raises(TimeoutError):
        asyncio.run(fetch_run_page(serve_once(head(PAGE), PAGE[:20], silent=True), 0.2))


def test_another_kind_of_server_gives_no_answer(serve_once):
    with pytest.raises(ConnectionError):
        asyncio.run(fetch_run_page(serve_once(b"220 mail.example ESMTP\r\n"), WAIT_S))
