"""The terminal: texts of jobs, users and files are shown as texts, and command nothing.

Whatever a verb prints goes through here. Control characters, marks that turn the direction of a text, and
line breaks where one line is meant are escaped; words in brackets are no markup. Styles are the verbs' own.
"""

import re
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from elastane.api.safe_text import escape_line, escape_text, format_entry

UNBOUNDED = 1 << 30
"""Characters: what a person asked to see is not cut."""
COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
"""Sequences that only change colours, which many programs write into their logs."""


class Terminal(Console):
    """A console on which only the verbs' own styles, and nothing of a text, has an effect.

    Args:
        stderr: write there.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, soft_wrap=True, markup=False, emoji=False)

    def print(self, *objects: Any, **options: Any) -> None:  # noqa: ANN401 - as in rich
        """As in rich. Further lines of a text are indented, so that none passes for another message."""
        shown = (format_entry(one, UNBOUNDED) if isinstance(one, str) else one for one in objects)
        super().print(*shown, **options)

    def print_document(self, text: str) -> None:
        """Prints text of several lines that a verb has written itself."""
        super().print(Text(escape_text(text.rstrip("\n"), UNBOUNDED)))

    def print_quoted(self, text: str) -> None:
        """Prints text of several lines that somebody else has written, such as a traceback: indented."""
        super().print(Text(indent_quotation(text)))

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As in rich; the last place that every text passes."""
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control or text == "\n" or text.isprintable():
                yield segment
            else:
                yield Segment(escape_text(text, UNBOUNDED), segment.style)


def indent_quotation(text: str) -> str:
    """Somebody else's text of several lines; no line of it passes for one of ours."""
    return "  " + format_entry(text, UNBOUNDED)


def write_paragraphs(text: str, to: TextIO) -> None:
    """Write text of several lines without styles, and end its last line."""
    to.write(escape_text(text.rstrip("\n"), UNBOUNDED) + "\n")
    to.flush()


def write_csv(text: str, to: TextIO) -> None:
    """Write rows that end as RFC 4180 has it; whatever else commands a terminal in them is escaped."""
    to.write("\r\n".join(escape_line(row, UNBOUNDED) for row in text.split("\r\n")))
    to.flush()


def split_log_line(line: str) -> list[str]:
    """A line of a job's log, as a terminal may show it.

    Colours are left out. A progress bar, which goes back to the begin of the line again and again, becomes
    several lines. Whatever else would command the terminal is escaped.
    """
    parts = COLOURS.sub("", line.removesuffix("\r")).split("\r")
    return [escape_line(part.expandtabs(), UNBOUNDED) for part in parts if part] or [""]


def escape_json(document: bytes) -> str:
    """JSON of the same value, with escapes in place of characters that a terminal would obey."""
    text = document.decode()
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _json_escape(one) for one in text)


def _json_escape(character: str) -> str:
    # Two escapes where the character is beyond the first 65,536.
    pairs = character.encode("utf-16-be", errors="surrogatepass")
    return "".join(f"\\u{pairs[at]:02x}{pairs[at + 1]:02x}" for at in range(0, len(pairs), 2))
