"""TLS between workers of different machines, with the certificate of the run.

The accepting side proves itself with the certificate, and the dialling side trusts no other. The handshake
of `elastane.run.worker.links.handshake` follows inside the encrypted connection, and proves the run's secret
in both directions. Both sides decide by the two addresses of a connection whether it leaves the machine, so
nothing is negotiated in clear, and a connection that does not do as its addresses say is refused.

OpenSSL lets only one thread at a time use a connection. The thread that drives the mesh does all of it.
"""

import ssl
from dataclasses import dataclass
from socket import socket
from typing import TYPE_CHECKING

from elastane.run.connections.run_certificate import (
    build_client_context,
    load_server_context,
    read_certificate,
)
from elastane.run.nouns.rundir import RunDir

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastane.run.worker.links.frames import Buffer

SEND_BYTES = 1 << 20
"""The most bytes that one call encrypts; OpenSSL divides them into records of 16 KiB."""


class EncryptedSocket(ssl.SSLSocket):
    """A non-blocking socket that encrypts; a `FrameStream` uses it like a plain one.

    Where a plain socket raises `BlockingIOError`, so does this one, also in the handshake of TLS.
    """

    def handshake_step(self) -> None:
        """Continue the handshake of TLS.

        Raises:
            BlockingIOError: the answer of the other side has not arrived, or the socket accepts no more.
            OSError: the other side does not speak TLS, or its certificate is not that of the run.
        """
        try:
            self.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def sendmsg(self, buffers: "Sequence[Buffer]") -> int:  # type: ignore[override]
        """Send the beginning of the first buffer, and return its length in bytes.

        After `BlockingIOError` the next call must send the same buffer again: OpenSSL has encrypted a part.

        Raises:
            BlockingIOError: the socket accepts no more now.
            OSError: the connection is broken.
        """
        try:
            return self.send(memoryview(buffers[0])[:SEND_BYTES])
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Return some decrypted bytes; none at the end of the connection.

        Raises:
            BlockingIOError: no whole record has arrived.
            OSError: the connection is broken, or a record was altered.
        """
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def recv_into(  # type: ignore[override]
        self, buffer: memoryview, nbytes: int | None = None, flags: int = 0
    ) -> int:
        """Receive bytes into a buffer, and return their number; 0 at the end of the connection.

        Raises:
            BlockingIOError: no whole record has arrived.
            OSError: the connection is broken, or a record was altered.
        """
        try:
            return super().recv_into(buffer, nbytes, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error


@dataclass(frozen=True, slots=True)
class Encryption:
    """The encryption of a worker's connections to other machines.

    Args:
        server: proves this worker with the run's certificate.
        client: trusts the run's certificate only.
    """

    server: ssl.SSLContext
    client: ssl.SSLContext

    def wrap(self, sock: socket, *, accepted: bool) -> EncryptedSocket:
        """Return the encrypted socket of a connected, non-blocking one, which must not be used again.

        Raises:
            OSError: the connection is broken.
        """
        context = self.server if accepted else self.client
        wrapped = context.wrap_socket(sock, server_side=accepted, do_handshake_on_connect=False)
        assert isinstance(wrapped, EncryptedSocket), "the contexts make such sockets"
        return wrapped


def load_encryption(run_dir: RunDir) -> Encryption:
    """Return the encryption of a run from its directory, for its user.

    Raises:
        OSError: the certificate is missing or cannot be read.
    """
    server, client = load_server_context(run_dir), build_client_context(read_certificate(run_dir))
    # Workers resume no session, and a ticket would be a message that no read expects.
    server.num_tickets = 0
    server.sslsocket_class = client.sslsocket_class = EncryptedSocket
    return Encryption(server, client)
