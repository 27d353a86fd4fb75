"""The archives of code in the home of the controller, each named by the digest of its code.

They change only within a transaction that writes, and so one at a time; `code_rows` says which ones there
should be. A row without its file counts as none: the code is sent again.
"""

import os
import tempfile
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec
from sqlalchemy import Connection

from elastane.cluster.controller.store import code_rows
from elastane.cluster.engines.local.job_code import locate_code_archive
from elastane.common.atomic_file import sync_directory
from elastane.common.confined_files import ConfinedDirectory

PARTIAL = ".partial"


class CodeFiles(msgspec.Struct, frozen=True):
    """The archives in a home, which only the user of the controller may read: code may be private."""

    home: Path

    def find(self, digest: str) -> Path | None:
        """Return the archive of some code; None: it is not there."""
        path = locate_code_archive(self.home, digest)
        return path if path.is_file() else None

    @contextmanager
    def open_partial(self, digest: str) -> Iterator[IO[bytes]]:
        """Yield a new file for an archive; it is removed at the end, unless `keep` has moved it.

        Raises:
            OSError: it cannot be made.
        """
        folder = locate_code_archive(self.home, digest).parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            prefix=f".{digest[:12]}.", suffix=PARTIAL, dir=folder, delete=False
        ) as file:
            try:
                yield file
            finally:
                Path(file.name).unlink(missing_ok=True)

    def keep(self, partial: IO[bytes], digest: str) -> None:
        """Give an archive its name. It is complete, checked, and on the disk.

        Raises:
            OSError: the disk has not taken its name.
        """
        os.fchmod(partial.fileno(), 0o400)
        path = locate_code_archive(self.home, digest)
        Path(partial.name).replace(path)
        sync_directory(path.parent)

    def delete_unneeded(self, tx: Connection, now_s: float) -> None:
        """Delete the code that no job needs, in a transaction that writes."""
        for team, digest in code_rows.list_unneeded_code(tx, now_s):
            if code_rows.forget_code(tx, team, digest):
                locate_code_archive(self.home, digest).unlink(missing_ok=True)

    def clean(self, known: Container[str], now_s: float) -> None:
        """Remove the parts of archives that a killed controller has left, and old archives without a row.

        Newer ones stay: they may be of jobs in another store, which is used again after this one.
        """
        folder = locate_code_archive(self.home, "any").parent
        for name in ConfinedDirectory(folder).list_files(folder):
            path = folder / name
            is_old = path.stat().st_mtime < now_s - code_rows.KEPT_S
            if path.suffix == PARTIAL or (is_old and name.partition(".")[0] not in known):
                path.unlink(missing_ok=True)
