"""The certificate of the double, which has signed itself: without one, clients send no tokens."""

import ssl
from pathlib import Path

from tests.certificates import make_certificate


def write_certificate(folder: Path) -> Path:
    """Write a file with a certificate for 127.0.0.1 and its key, and return its path."""
    path = folder / "certificate.pem"
    path.write_bytes(b"".join(make_certificate("double")))
    return path


def read_public_part(path: Path) -> str:
    """Return the certificate without its key."""
    text = path.read_text()
    return text[: text.index("-----BEGIN PRIVATE KEY")]


def build_server_context(path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context
