"""The URLs of targets are secrets: the store has them encrypted, and the key is a file in the home.

So a backup or a dump of the database has none of them. The key is made with the first target.
"""

import contextlib
import os
from pathlib import Path

from elastane.common.errors import BadInput
from elastane.common.extras import require_for_import

FOLDER, KEY = "notifications", "key"


class KeyLost(BadInput):
    """The key that has encrypted a URL is not there, so nothing can be sent to its target."""


def find_folder(home: Path) -> Path:
    """Return the directory of the key and of the attempts, which only the user of the controller may read."""
    folder = home / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def seal(home: Path, url: str) -> bytes:
    """Return a URL encrypted with the key of a home. The first URL makes the key.

    Raises:
        MissingExtra: cryptography is not installed.
        OSError: the key cannot be written.
    """
    with require_for_import("notify", "the URLs of targets are encrypted"):
        from cryptography.fernet import Fernet

    path = find_folder(home) / KEY
    if not path.exists():
        _make_key(path, Fernet.generate_key())
    return Fernet(path.read_bytes()).encrypt(url.encode())


def _make_key(path: Path, key: bytes) -> None:
    """Store a key, unless another process makes one first: only a whole key gets the name."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, key)
        os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(partial, path)
    finally:
        os.close(descriptor)
        partial.unlink()


def unseal(home: Path, sealed: bytes) -> str:
    """Return the URL that `seal` has encrypted.

    Raises:
        KeyLost: it was encrypted with another key.
        MissingExtra: cryptography is not installed.
    """
    with require_for_import("notify", "the URLs of targets are encrypted"):
        from cryptography.fernet import Fernet, InvalidToken

    try:
        return Fernet((find_folder(home) / KEY).read_bytes()).decrypt(sealed).decode()
    except (OSError, ValueError, InvalidToken) as error:
        raise KeyLost(
            "the URL of the target cannot be read",
            means="the key in the home of the controller is not the one that has encrypted it",
            do="put the key back, or remove the target and add it again",
        ) from error
