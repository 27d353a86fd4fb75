"""Output to the terminal that shows texts of jobs, users and files without executing their control codes.

All output of the commands passes through this module. It escapes control characters, marks that change the
direction of a text, and line breaks within a line. Brackets in a text are not markup: only commands set
styles.
"""

import io
import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from elastane.common.safe_text import escape_line, escape_text, format_entry

UNBOUNDED = 1 << 30
"""Limit in characters for texts that are never cut."""
COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
"""Escape sequences that only change colours; many programs write these into their logs."""


class Terminal(Console):
    """A console that applies the styles of the commands, and no markup or control codes of a text."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, soft_wrap=True, markup=False, emoji=False)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print like rich, with further lines of a text indented so that none looks like another message."""
        shown = (format_entry(part, UNBOUNDED) if isinstance(part, str) else part for part in objects)
        super().print(*shown, **options)

    def print_document(self, text: str) -> None:
        """Print text of several lines that comes from the command itself."""
        super().print(Text(escape_text(text.rstrip("\n"), UNBOUNDED)))

    def print_quoted(self, text: str) -> None:
        """Print text of several lines from another source, such as a traceback, indented."""
        super().print(Text(indent_quotation(text)))

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render like rich, with control characters escaped; every text passes here last."""
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control or text == "\n" or text.isprintable():
                yield segment
            else:
                yield Segment(escape_text(text, UNBOUNDED), segment.style)


class LossyStream:
    """A text stream that takes every write: text that cannot be written is lost."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            return

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def escape_other_encodings() -> None:
    """Let this process show an escape for each character that the encoding of its output does not have."""
    # UTF-8 has all characters, and a stream to a terminal may refuse to be configured anew.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(errors="backslashreplace")


def can_write_output() -> bool:
    """Print an empty line, and return whether that was possible.

    A stream forgets what it could not write, so only this tells a full disk of the output from another one.
    """
    try:
        print(flush=True)
    except OSError:
        return False
    return True


def outlive_output() -> None:
    """Let this process continue after the reader of its output is gone, or the disk of its log is full.

    A run costs more than its log, and a program that reads it through a pipe may end at any time.
    """
    # Both stay until the process ends: Python flushes them last, and would change the exit code.
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, LossyStream):
            setattr(sys, name, cast("TextIO", LossyStream(stream)))


def indent_quotation(text: str) -> str:
    """Return text from another source indented, so that no line of it looks like a message of elastane."""
    return "  " + format_entry(text, UNBOUNDED)


def write_paragraphs(text: str, to: TextIO) -> None:
    """Write text of several lines without styles, and end its last line."""
    to.write(escape_text(text.rstrip("\n"), UNBOUNDED) + "\n")
    to.flush()


def write_csv(text: str, to: TextIO) -> None:
    """Write CSV with the line ends of RFC 4180; all other control characters are escaped."""
    to.write("\r\n".join(escape_line(row, UNBOUNDED) for row in text.split("\r\n")))
    to.flush()


def split_log_line(line: str) -> list[str]:
    """Return a line of a log as lines that are safe to show on a terminal.

    Colours are removed. A progress bar, which returns to the start of its line for each update, becomes one
    line per update. All other control characters are escaped.
    """
    parts = COLOURS.sub("", line.removesuffix("\r")).split("\r")
    return [escape_line(part.expandtabs(), UNBOUNDED) for part in parts if part] or [""]


def escape_json(document: bytes, encoding: str = "utf-8") -> str:
    """Return JSON of the same value with escapes in place of characters that this encoding cannot show."""
    text = document.decode()
    if text.isprintable() and (text.isascii() or encoding.lower() == "utf-8"):
        return text
    return "".join(char if _is_shown(char, encoding) else _json_escape(char) for char in text)


def _is_shown(character: str, encoding: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return character.isprintable()


def _json_escape(character: str) -> str:
    # A character beyond U+FFFF needs two escapes, a surrogate pair.
    pairs = character.encode("utf-16-be", errors="surrogatepass")
    return "".join(f"\\u{pairs[at]:02x}{pairs[at + 1]:02x}" for at in range(0, len(pairs), 2))
