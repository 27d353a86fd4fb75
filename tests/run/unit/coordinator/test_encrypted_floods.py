"""Strangers cannot take the descriptors of the ports with TLS: they are counted before their handshake."""

import contextlib
import resource
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elastane.run.connections.run_certificate import build_client_context, create_certificate
from elastane.run.nouns.machine_address import LOOPBACK_ONLY, publish_address
from tests.waiting import WAIT_S

from .test_authentication import BEARER, make_request
from .test_server import Served

AGENT = """
import asyncio, socket, sys
from pathlib import Path

from elastane.run.machines.agents.neighbours import answer_neighbours
from elastane.run.machines.succession.takeover import CoordinatorHeard
from elastane.run.nouns.rundir import RunDir

async def main():
    listening = socket.socket(fileno=int(sys.argv[2]))
    async with answer_neighbours(RunDir(Path(sys.argv[1])), listening, lambda: CoordinatorHeard(1.0, 1)):
        await asyncio.Event().wait()

asyncio.run(main())
"""
DESCRIPTORS = 256
UNPROVEN = DESCRIPTORS // 8
STRANGERS = 400
OTHERS = 8
"""Descriptors that the server may open meanwhile for itself, and for the client."""
REQUEST = make_request(BEARER)


class EncryptedPort:
    """A port with TLS, and the process that listens there.

    Args:
        process: it listens.
        listening: its socket.
        certificate: as PEM.
    """

    def __init__(self, process: subprocess.Popen, listening: socket.socket, certificate: str) -> None:
        self.process = process
        self.address = listening.getsockname()
        self.context = build_client_context(certificate)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=WAIT_S)

    def check_answers(self) -> None:
        """Check that a client with the secret is accepted."""
        with self.context.wrap_socket(self.connect()) as client:
            client.sendall(REQUEST)
            check_accepted(client.recv(4096))

    def count_descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def start_handshake(self) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
        """Return a client's TLS, and the bytes to it and from it; the latter hold its first message."""
        received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = self.context.wrap_bio(received, sent)
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        return client, received, sent


def check_accepted(answer: bytes) -> None:
    assert answer.startswith(b"HTTP/1.1 101"), answer


@contextlib.contextmanager
def serve_coordinator(root):
    served = Served(root, listen="127.0.0.1")
    certificate = create_certificate(served.run_dir)
    publish_address(served.run_dir, LOOPBACK_ONLY)
    served.start()
    try:
        yield EncryptedPort(served.process, served.listening, certificate)
    finally:
        served.close()


@contextlib.contextmanager
def serve_agent(root):
    served = Served(root, listen="127.0.0.1")
    certificate = create_certificate(served.run_dir)
    fd = served.listening.fileno()
    served.process = subprocess.Popen(
        [sys.executable, "-P", "-c", AGENT, str(root), str(fd)],
        pass_fds=(fd,),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield EncryptedPort(served.process, served.listening, certificate)
    finally:
        served.close()


@pytest.fixture(params=[serve_coordinator, serve_agent], ids=["coordinator", "agent"])
def port(request, tmp_path):
    with request.param(tmp_path) as port:
        port.check_answers()
        yield port


def keep_silent(port: EncryptedPort) -> socket.socket:
    return port.connect()


def greet(port: EncryptedPort) -> socket.socket:
    """Send the first message of a handshake, and not the last."""
    stranger, (_, _, sent) = port.connect(), port.start_handshake()
    with contextlib.suppress(ConnectionError):
        stranger.sendall(sent.read())
    return stranger


def shake_hands(port: EncryptedPort) -> socket.socket:
    """Do a whole handshake, if the server does not close the connection before, and then nothing."""
    stranger = port.connect()
    try:
        return port.context.wrap_socket(stranger)
    except (ConnectionError, ssl.SSLError):
        return stranger


def send_http(port: EncryptedPort) -> socket.socket:
    stranger = port.connect()
    with contextlib.suppress(ConnectionError):
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    return stranger


@pytest.mark.parametrize("come", [keep_silent, greet, shake_hands, send_http])
def test_strangers_take_few_descriptors_and_a_client_is_answered(port, come):
    before = port.count_descriptors()
    _, most = resource.prlimit(port.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(port.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, most))
    with contextlib.ExitStack() as strangers:
        for _ in range(STRANGERS):
            strangers.enter_context(come(port))
        # The server accepts connections in the order in which they arrive, so it has seen all strangers.
        port.check_answers()
        assert port.count_descriptors() <= before + UNPROVEN + OTHERS
    port.check_answers()
    port.process.terminate()
    _, errors = port.process.communicate(timeout=WAIT_S)
    assert len(errors) < 2000, errors[:2000]
    assert b"Traceback" not in errors, errors.decode()


def test_a_slow_handshake_succeeds(port):
    client, received, sent = port.start_handshake()
    with port.connect() as slow:
        hello = sent.read()
        slow.sendall(hello[:20])
        time.sleep(1.0)  # not a wait: the client is slow
        slow.sendall(hello[20:])
        while True:
            received.write(slow.recv(1 << 16))
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
                break
        time.sleep(1.0)  # not a wait: the client is slow
        client.write(REQUEST)
        slow.sendall(sent.read())
        check_accepted(read_decrypted(slow, client, received))


def test_a_request_in_one_packet_with_the_end_of_the_handshake_is_answered(port):
    client, received, sent = port.start_handshake()
    with port.connect() as hasty:
        hasty.sendall(sent.read())
        while True:
            received.write(hasty.recv(1 << 16))
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
                break
        client.write(REQUEST)
        hasty.sendall(sent.read())
        check_accepted(read_decrypted(hasty, client, received))


def test_a_request_in_front_of_the_handshake_is_no_part_of_it(port):
    with port.connect() as stranger, contextlib.suppress(ConnectionError):
        stranger.sendall(REQUEST + port.start_handshake()[2].read())
        assert b"HTTP" not in stranger.recv(4096)
    port.check_answers()


def read_decrypted(connection: socket.socket, client: ssl.SSLObject, received: ssl.MemoryBIO) -> bytes:
    """Return the first decrypted bytes that arrive."""
    while True:
        with contextlib.suppress(ssl.SSLWantReadError):
            return client.read()
        data = connection.recv(1 << 16)
        assert data, "the server has closed the connection"
        received.write(data)
