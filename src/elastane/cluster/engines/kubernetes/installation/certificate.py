"""The certificate of a controller in a cluster, which signs itself: the tickets of agents have it."""

import datetime as dt
import ipaddress
from typing import Any

from elastane.cluster.engines.kubernetes.installation.objects import LABELS, NAME
from elastane.common.extras import require

VALID_DAYS = 3650
EARLIER_DAYS = 1
"""Clocks of other machines may be behind."""


def build_certificate_secret(namespace: str) -> dict[str, Any]:
    """Return the Secret with a new key and a new certificate for the controller in a namespace.

    Raises:
        MissingExtra: the package that makes certificates is not installed.
    """
    require("nodes", "the certificate of the controller")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    names = x509.SubjectAlternativeName(
        [
            x509.DNSName(f"{NAME}.{namespace}"),
            # With this one, the commands in the pod find the controller.
            x509.IPAddress(ipaddress.IPv4Address("0.0.0.0")),  # noqa: S104 - a name
        ]
    )
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=EARLIER_DAYS))
        .not_valid_after(now + dt.timedelta(days=VALID_DAYS))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{NAME}-tls", "namespace": namespace, "labels": dict(LABELS)},
        "type": "kubernetes.io/tls",
        "stringData": {
            "tls.crt": certificate.public_bytes(serialization.Encoding.PEM).decode(),
            "tls.key": private.decode(),
        },
    }
