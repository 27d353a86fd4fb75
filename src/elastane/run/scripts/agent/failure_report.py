"""The traceback of the process that failed, from its error file or from the end of its log."""

from pathlib import Path

import msgspec

from elastane.common.safe_text import escape_text
from elastane.common.untrusted_data import Decoder, Malformed
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.tail import read_end_of_text

LOG_BYTES = 32 << 10
LONGEST_TRACEBACK = 20_000
LARGEST_FILE_BYTES = 4 << 20
TRACEBACK = "Traceback (most recent call last):"
LAST_LINES = 20


class _ExtraInfo(msgspec.Struct, frozen=True):
    py_callstack: str = ""


class _ErrorMessage(msgspec.Struct, frozen=True):
    message: str = ""
    extraInfo: _ExtraInfo = _ExtraInfo()  # noqa: N815 - torch's name


class _ErrorFile(msgspec.Struct, frozen=True):
    """What torch's ``record`` decorator writes to ``TORCHELASTIC_ERROR_FILE``."""

    message: _ErrorMessage | str = ""


_decode = Decoder[_ErrorFile](_ErrorFile, at_most_bytes=LARGEST_FILE_BYTES)


def find_error_file(run_dir: RunDir, log: str, generation: int) -> Path:
    """Return the path of the error file of one process, in the folder of the logs."""
    return run_dir.logs / f"{log}.error-{generation}.json"


def read_failure(run_dir: RunDir, log: str, generation: int) -> str:
    """Return the traceback of a process, or the last lines of its log; empty if neither can be read."""
    found = _read_error_file(run_dir, find_error_file(run_dir, log, generation)) or _read_log(run_dir, log)
    return escape_text(found, LONGEST_TRACEBACK)


def _read_error_file(run_dir: RunDir, path: Path) -> str:
    try:
        message = _decode(run_dir.files.read(path, LARGEST_FILE_BYTES)).message
    except (OSError, Malformed):
        return ""
    if isinstance(message, str):
        return message
    return message.extraInfo.py_callstack or message.message


def _read_log(run_dir: RunDir, log: str) -> str:
    try:
        text = read_end_of_text(run_dir.files, run_dir.log(log), LOG_BYTES)
    except (OSError, Malformed):
        return ""
    found = text.rfind(TRACEBACK)
    return text[found:] if found >= 0 else "\n".join(text.splitlines()[-LAST_LINES:])
