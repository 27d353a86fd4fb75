"""Secrets of tokens: random, 256 bits, told once."""

import hashlib
import secrets

PREFIX = "ela_"
"""So that a secret which has leaked into a log or a repository can be found by its looks."""


def new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def new_id() -> str:
    """What people call a token; no secret."""
    return "tok-" + secrets.token_hex(6)


def compute_digest(secret: str) -> bytes:
    """SHA-256, 32 bytes. Fast on purpose: nobody guesses 256 random bits, so nothing has to be slow."""
    return hashlib.sha256(secret.encode()).digest()
