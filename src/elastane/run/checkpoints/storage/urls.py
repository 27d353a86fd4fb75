"""Storage by path or URL."""

from pathlib import Path

from elastane.common.url_credentials import check_no_credentials
from elastane.run.checkpoints.storage.interface import Storage, build_missing_file_system_error
from elastane.run.checkpoints.storage.local import LocalStorage
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import CheckpointPolicy


def open_run_storage(run_dir: RunDir, policy: CheckpointPolicy) -> Storage:
    """Return the storage of a run's checkpoints; see `open_storage`."""
    return open_storage(policy.get_root(run_dir), None if policy.url else run_dir.root)


def open_storage(url: str, inside: Path | None = None) -> Storage:
    """Return the storage at a path or URL, without reading, writing or creating anything.

    Args:
        inside: for a path, a directory above it that must not move or be replaced; see `LocalStorage`.

    Raises:
        BadInput: the URL has credentials, or its file system is not installed.
    """
    check_no_credentials(url)
    scheme, separator, path = url.partition("://")
    if not separator or scheme in ("file", "local"):
        return LocalStorage(path if separator else url, inside)
    try:
        from elastane.run.checkpoints.storage.remote import open_remote_storage
    except ImportError as error:
        raise build_missing_file_system_error(url, error) from error
    return open_remote_storage(url)
