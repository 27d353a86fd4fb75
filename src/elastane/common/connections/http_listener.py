"""The listening socket of an HTTP server, and its certificate."""

import ipaddress
import socket
import ssl
from pathlib import Path

from elastane.common.connections.patient_listener import make_patient_listener
from elastane.common.errors import BadInput


def open_http_listener(host: str, port: int, certificate: str, key: str) -> socket.socket:
    """Return the bound socket. It is bound first, so that a taken port is found before anything else happens.

    Args:
        port: 0: any free one.
        certificate: file with the certificate chain; empty: plain HTTP, on loopback only.
        key: file with its private key.

    Raises:
        BadInput: the address or the certificate cannot be used.
    """
    if bool(certificate) != bool(key):
        raise BadInput("a certificate and its key belong together", do="give --tls-cert and --tls-key")
    for file in filter(None, (certificate, key)):
        if not Path(file).is_file():
            raise BadInput(f"there is no file {file}", do="give the paths of the certificate and of its key")
    # The certificate is checked before the server reports that it is ready.
    load_server_certificate(certificate, key)
    if not certificate and not is_loopback(host):
        raise BadInput(
            f"{host} can be reached from other machines, and there is no certificate",
            means="tokens would cross the network without encryption",
            do="give --tls-cert and --tls-key, or listen on 127.0.0.1",
        )
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # Without an explicit type, asyncio leaves Nagle's algorithm on, and every answer waits 40 ms.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        raise BadInput(
            f"cannot listen on {host}:{port} ({error.strerror or error})",
            means="nothing was started",
            do="end the program that listens there, or give another --listen",
        ) from error
    return make_patient_listener(listener)


def format_url(listener: socket.socket, *, encrypted: bool) -> str:
    """Return the address of the server that listens."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if encrypted else 'http'}://{shown}:{port}"


def load_server_certificate(certificate: str, key: str) -> ssl.SSLContext | None:
    """Return the context with the certificate of a server; None: it has none."""
    if not certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without this, OpenSSL would ask for a passphrase on the terminal. An empty one opens no key.
        context.load_cert_chain(certificate, key, password=str)
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{certificate} and {key} are not a certificate and its key ({error})",
            means="nothing was started",
            do="give two PEM files that this user may read, the key of this certificate without a passphrase",
        ) from error
    return context


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
