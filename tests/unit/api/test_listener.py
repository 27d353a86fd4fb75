"""A server that lacks descriptors waits for them; it neither fails, nor spins, nor fills its log."""

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
def no_descriptors():
    """Calls with True leave this process none, calls with False all that it had."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def lack(lacking: bool) -> None:
        most = limits[0]
        if lacking:
            most = os.dup(0)
            os.close(most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))

    yield lack
    lack(lacking=False)


def test_a_server_without_descriptors_logs_one_line_and_serves_again_when_it_has_them(no_descriptors, caplog):
    async def story() -> None:
        served = asyncio.Event()

        async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            served.set()
            writer.close()

        listening = make_patient_listener(socket.create_server(("127.0.0.1", 0)))
        server = await asyncio.start_server(serve, sock=listening, backlog=BACKLOG)
        accepts = itertools.count()
        original = type(listening).accept

        def counted(self: socket.socket) -> object:
            next(accepts)
            return original(self)

        type(listening).accept = counted
        visitor = socket.socket()
        try:
            no_descriptors(True)
            visitor.connect(listening.getsockname())
            await asyncio.sleep(2.5)
            assert not served.is_set()
            assert next(accepts) < 20, "asyncio alone tries as often as its backlog is long"
            no_descriptors(False)
            async with asyncio.timeout(WAIT_S):
                await served.wait()
        finally:
            type(listening).accept = original
            no_descriptors(False)
            visitor.close()
            server.close()
            await server.wait_closed()

    asyncio.run(story())
    assert sum("out of system resource" in record.getMessage() for record in caplog.records) <= 1
