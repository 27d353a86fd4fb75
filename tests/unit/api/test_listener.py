"""A server without free descriptors waits for them; it does not fail, spin or fill its log."""

import asyncio
import itertools
import os
import resource
import socket

import pytest

from elastane.api.patient_listener import make_patient_listener

BACKLOG = 100
WAIT_S = 20


@pytest.fixture
def limit_descriptors():
    """Return a function that takes all free descriptors from this process, or returns them."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def set_limit(exhausted: bool) -> None:
        most = limits[0]
        if exhausted:
            most = os.dup(0)
            os.close(most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))

    yield set_limit
    set_limit(exhausted=False)


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
            await asyncio.sleep(2.5)
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
