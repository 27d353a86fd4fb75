"""Storage by path or URL."""

from pathlib import Path

from elastane.storage.error_translation import missing_file_system_error
from elastane.storage.interface import Storage
from elastane.storage.local import LocalStorage


def open_storage(url: str, inside: Path | None = None) -> Storage:
    """Return the storage at a path or URL; nothing is read, written or created yet.

    Args:
        url: or path.
        inside: of a path, a directory above it that must not be moved or replaced; see `LocalStorage`.

    Raises:
        BadInput: no file system for this URL is installed.
    """
    scheme, separator, path = url.partition("://")
    if not separator or scheme in ("file", "local"):
        return LocalStorage(path if separator else url, inside)
    try:
        from elastane.storage.remote import open_remote_storage  # noqa: PLC0415 - fsspec is an extra
    except ImportError as error:
        raise missing_file_system_error(url, error) from error
    return open_remote_storage(url)
