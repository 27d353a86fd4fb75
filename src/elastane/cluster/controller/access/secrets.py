"""Secrets of tokens: 256 random bits, shown once."""

import hashlib
import secrets

PREFIX = "ela_"
"""Prefix of every secret, so that a leaked one can be found in logs and repositories."""


def generate_secret() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def generate_token_id() -> str:
    """Generate the id of a token, which is not a secret."""
    return "tok-" + secrets.token_hex(6)


def compute_digest(secret: str) -> bytes:
    """Return the SHA-256 of a secret, 32 bytes. A slow hash is not needed for 256 random bits."""
    return hashlib.sha256(secret.encode()).digest()
