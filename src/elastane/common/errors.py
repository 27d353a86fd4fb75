"""Every error that a user may see.

ElastaneError
├── BadInput            the request cannot be met; nothing was changed       (exit code 2)
│   └── BadField        one field of a document is wrong; the error names it
├── NoSuchRun           no run of that name, or it is not running            (exit code 3)
├── RunFailed           the training itself failed; the traceback is shown   (exit code 1)
│   └── RunDirectoryLost  the run's directory was removed, moved or replaced
├── StateLost           every copy of some block died at once                (exit code 1)
└── StorageError        storage refused to read, write or delete             (exit code 1)
    ├── NoSuchFile      the file or directory does not exist
    ├── StorageFull     no room left
    ├── UnreadableData  bytes of a file cannot be read: it was cut off, or the medium failed
    └── Damaged         a checkpoint's file differs from what was written; the error names it
"""

from pathlib import Path

import msgspec

from elastane.common.exit_codes import ExitCode
from elastane.common.safe_text import fold_text

LONGEST_PART = 20_000
"""The most characters of each part of an error."""


class ElastaneError(Exception):
    """An error that says what happened, what it means and what to do."""

    exit_code = ExitCode.FAILED

    def __init__(self, what: str, *, means: str = "", do: str = "") -> None:
        self.what, self.means, self.do = what, means, do
        # The parts may quote requests and files: such a text must not add a line or control the terminal.
        lines = [fold_text(what, LONGEST_PART)]
        if means:
            lines.append(f"  means: {fold_text(means, LONGEST_PART)}")
        if do:
            lines.append(f"  do:    {fold_text(do, LONGEST_PART)}")
        super().__init__("\n".join(lines))


class BadInput(ElastaneError):
    exit_code = ExitCode.BAD_INPUT


class BadField(BadInput):
    """One field of a document is wrong.

    Args:
        field: as a path: ``elasticPolicy.minReplicas``.
        wrong: completes a sentence that begins with the field.
    """

    def __init__(self, field: str, wrong: str, *, means: str = "", do: str = "") -> None:
        self.field = field
        super().__init__(f"{field}: {wrong}", means=means, do=do)


class NoSuchRun(ElastaneError):
    exit_code = ExitCode.NOT_FOUND


class RunFailed(ElastaneError):
    exit_code = ExitCode.FAILED


class NoCoordinator(RunFailed):
    """A run is live, and no coordinator of it answers."""


class RunDirectoryLost(RunFailed):
    """A run directory or one of its files was removed, moved or replaced.

    Args:
        moved_to: where the directory is now; None: it, or a file of it, is gone.
    """

    def __init__(self, what: str, *, means: str = "", do: str = "", moved_to: Path | None = None) -> None:
        self.moved_to = moved_to
        super().__init__(what, means=means, do=do)


class StateLost(ElastaneError):
    exit_code = ExitCode.FAILED


class StorageError(ElastaneError):
    exit_code = ExitCode.FAILED


class NoSuchFile(StorageError):
    pass


class StorageFull(StorageError):
    pass


class UnreadableData(StorageError):
    pass


class FileDamage(msgspec.Struct, frozen=True):
    """The damage of one file of a checkpoint."""

    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


class Damaged(StorageError):
    """A checkpoint differs from what was written: its damaged files, and how each is damaged."""

    def __init__(self, checkpoint: str, damages: tuple[FileDamage, ...], *, means: str = "") -> None:
        self.checkpoint, self.damages = checkpoint, damages
        super().__init__(
            f"checkpoint {checkpoint} is damaged: " + "; ".join(map(str, damages)),
            means=means or "it cannot be used; use an older checkpoint",
        )
