"""The certificate of a run on several machines: it encrypts the control connections between them.

The node that begins an attempt makes a new one for it. Its private key is in the run directory, for the
run's user only; the endpoint carries the certificate, and a client trusts this one and no other.
"""

import datetime as dt
import hashlib
import ipaddress
import os
import ssl
from collections.abc import Sequence

from elastane.common.extras import require
from elastane.run.nouns.rundir import CERTIFICATE, RunDir

BEGIN = "-----BEGIN CERTIFICATE-----"
VALID_DAYS = 3650
EARLIER_DAYS = 1
"""Clocks of other machines may be behind."""


def create_certificate(run_dir: RunDir) -> str:
    """Make a key and a certificate for the coordinators of a run; return the certificate as PEM.

    Raises:
        MissingExtra: the package that makes certificates is not installed.
        OSError: the files cannot be written.
    """
    require("nodes", "a run on several machines encrypts their connections")
    private, text = sign_certificate("elastane run")
    path = run_dir.root / CERTIFICATE
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write((private + text).encode())
    return text


def sign_certificate(
    subject: str, hosts: Sequence[str] = (), addresses: Sequence[str] = ()
) -> tuple[str, str]:
    """Make a key and a certificate that signs itself; return both as PEM.

    Args:
        hosts: DNS names that it is valid for.
        addresses: IP addresses that it is valid for.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=EARLIER_DAYS))
        .not_valid_after(now + dt.timedelta(days=VALID_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    )
    names = [
        *map(x509.DNSName, hosts),
        *(x509.IPAddress(ipaddress.ip_address(address)) for address in addresses),
    ]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    text = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private.decode(), text.decode()


def read_certificate(run_dir: RunDir) -> str:
    """Return the certificate of the present attempt as PEM, without its key.

    Raises:
        OSError: the file is missing or cannot be read.
        Malformed: it is not a regular file.
    """
    text = run_dir.files.read(run_dir.root / CERTIFICATE).decode(errors="replace")
    return text[text.index(BEGIN) :] if BEGIN in text else ""


def compute_fingerprint(certificate: str) -> bytes:
    """Return the SHA-256 of a certificate in DER, 32 bytes.

    Args:
        certificate: as PEM.

    Raises:
        ValueError: the text is not a certificate.
    """
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).digest()


def load_server_context(run_dir: RunDir) -> ssl.SSLContext:
    """Return the context of the coordinator, which proves itself with the certificate of the run.

    Raises:
        OSError: the file is missing or cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(run_dir.root / CERTIFICATE)
    return context


def build_client_context(certificate: str) -> ssl.SSLContext:
    """Return the context of a client, which trusts only this certificate, at any address.

    Raises:
        ssl.SSLError: the text is not a certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    return context
