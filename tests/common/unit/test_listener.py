"""A server without free descriptors waits for them; it does not fail, spin or fill its log."""

import asyncio
import contextlib
import gc
import itertools
import os
import resource
import socket
from pathlib import Path

import pytest

from elastane.common.connections.patient_listener import make_patient_listener
from tests.waiting import WAIT_S

BACKLOG = 100


@pytest.fixture
def limit_descriptors():
    """Return a function that takes all free descriptors from this process, or returns them.

    No lower one becomes free meanwhile: what earlier tests left is collected first.
    """
    gc.collect()
    gc.disable()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def set_limit(exhausted: bool) -> None:
        most = limits[0]
        if exhausted:
            most = os.dup(0)
            os.close(most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))

    yield set_limit
    set_limit(exhausted=False)
    gc.enable()


def test_a_server_without_descriptors_logs_one_line_and_serves_again_when_it_has_them(
    limit_descriptors, caplog
):
    async def story() -> None:
        served = asyncio.Event()

        async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            served.set()
            writer.close()

        listening = make_patient_listener(socket.create_server(("127.0.0.1", 0)))
        server = await asyncio.start_server(serve, sock=listening, backlog=BACKLOG)
        accepts = itertools.count()
        original = type(listening).accept

        def accept_and_count(self: socket.socket) -> object:
            next(accepts)
            return original(self)

        type(listening).accept = accept_and_count
        visitor = socket.socket()
        try:
            limit_descriptors(True)
            visitor.connect(listening.getsockname())
            await asyncio.sleep(2.5)  # not a wait: the server tries to accept meanwhile
            assert not served.is_set()
            assert next(accepts) < 20, "asyncio alone tries as often as its backlog is long"
            limit_descriptors(False)
            async with asyncio.timeout(WAIT_S):
                await served.wait()
        finally:
            type(listening).accept = original
            limit_descriptors(False)
            visitor.close()
            server.close()
            await server.wait_closed()

    asyncio.run(story())
    assert sum("out of system resource" in record.getMessage() for record in caplog.records) <= 1


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def wait_for_end(visitor: socket.socket, descriptors: list[int]) -> None:
    """Wait until a server has ended a connection; note the number of descriptors in each turn of the loop."""
    visitor.setblocking(False)
    with contextlib.suppress(ConnectionError):
        while True:
            descriptors.append(count_descriptors())
            try:
                visitor.recv(1)
            except BlockingIOError:
                await asyncio.sleep(0)  # not a wait: the turn of the server
            else:
                return


def test_a_server_accepts_few_connections_of_a_flood_before_it_has_closed_others():
    descriptors: list[int] = []

    class Refusal(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.abort()

    async def story() -> None:
        listening = make_patient_listener(socket.create_server(("127.0.0.1", 0), backlog=4 * BACKLOG))
        visitors = [socket.create_connection(listening.getsockname()) for _ in range(2 * BACKLOG)]
        descriptors.append(count_descriptors())
        server = await asyncio.get_running_loop().create_server(Refusal, sock=listening, backlog=4 * BACKLOG)
        try:
            async with asyncio.timeout(WAIT_S):
                for visitor in visitors:
                    await wait_for_end(visitor, descriptors)
        finally:
            for visitor in visitors:
                visitor.close()
            server.close()
            await server.wait_closed()

    asyncio.run(story())
    assert descriptors[0] < max(descriptors) < descriptors[0] + BACKLOG
