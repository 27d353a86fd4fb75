"""Functions that make text from outside safe to print, to log and to store.

Names, reasons and tracebacks come from jobs, clients and files. Control characters in them could control a
terminal, a line break could forge a line of a log, and an endless text could fill a disk. Code that shows or
stores such a text passes it through this module.
"""

LONGEST_TEXT = 1000
"""The most characters, unless the caller sets another limit."""
CUT = "…"


def escape_line(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return the text in one line: line breaks and control characters are escaped, the excess is cut off."""
    return _escape_and_cut(text, longest, keep="")


def escape_text(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return the text with its line breaks and tabs; other control characters are escaped."""
    return _escape_and_cut(text, longest, keep="\n\t")


def fold_text(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return the text in one line: line breaks become spaces, control characters are escaped.

    Use it for sentences that may come from an error with several lines.
    """
    cut = text[: longest + 1]
    joined = " ".join(filter(None, map(str.strip, cut.split("\n")))) if "\n" in cut else cut
    return escape_line(joined, longest) if len(text) <= longest else escape_line(joined + CUT, longest)


def format_entry(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return the text as one log entry: later lines are indented, so that none looks like an entry."""
    return escape_text(text.rstrip("\n"), longest).replace("\n", "\n  ")


def make_storable(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return the text unchanged, but bounded, and without characters that a database or JSON cannot hold.

    These are NUL and halves of surrogate pairs. Code that shows the text must still escape it.
    """
    shown = text[:longest]
    if "\0" in shown or not shown.isascii():
        shown = "".join(_escape(c) if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in shown)
    return shown if len(shown) <= longest and len(text) <= longest else shown[: longest - 1] + CUT


def _escape_and_cut(text: str, longest: int, keep: str) -> str:
    # Bound the text before and after, because escaping turns one character into up to ten.
    shown = text[:longest]
    if not shown.isprintable():
        shown = "".join(c if c in keep or c.isprintable() else _escape(c) for c in shown)
    return shown if len(shown) <= longest and len(text) <= longest else shown[: longest - 1] + CUT


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
