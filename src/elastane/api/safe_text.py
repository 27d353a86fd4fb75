"""Make text from outside safe to print, to log and to store.

Names, reasons and tracebacks come from jobs, clients and files. A terminal obeys control characters in them,
a line break forges a line of a log, and an endless text fills a disk. Code that shows or stores such a text
passes it through this module.
"""

LONGEST = 1000
"""Characters, unless the caller says otherwise."""
CUT = "…"


def escape_line(text: str, longest: int = LONGEST) -> str:
    """Return the text in one line: line breaks and control characters are escaped, the excess is cut off."""
    return _escaped(text, longest, keep="")


def escape_text(text: str, longest: int = LONGEST) -> str:
    """Return the text with its line breaks and tabs; other control characters are escaped."""
    return _escaped(text, longest, keep="\n\t")


def fold_text(text: str, longest: int = LONGEST) -> str:
    """Return the text in one line: line breaks become spaces, control characters are escaped.

    For sentences that may be those of an error, which has several lines.
    """
    cut = text[: longest + 1]
    joined = " ".join(filter(None, map(str.strip, cut.split("\n")))) if "\n" in cut else cut
    return escape_line(joined, longest) if len(text) <= longest else escape_line(joined + CUT, longest)


def format_entry(text: str, longest: int = LONGEST) -> str:
    """Return the text as one entry of a log: further lines are indented, so that none passes for an entry."""
    return escape_text(text.rstrip("\n"), longest).replace("\n", "\n  ")


def make_storable(text: str, longest: int = LONGEST) -> str:
    """Return the text as it is, but bounded, and without what a database or JSON cannot hold.

    That is NUL, and halves of surrogate pairs. Code that shows the text must still escape it.
    """
    shown = text[:longest]
    if "\0" in shown or not shown.isascii():
        shown = "".join(_escape(c) if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in shown)
    return shown if len(shown) <= longest and len(text) <= longest else shown[: longest - 1] + CUT


def _escaped(text: str, longest: int, keep: str) -> str:
    # Bounded before and after: one character becomes up to ten.
    shown = text[:longest]
    if not shown.isprintable():
        shown = "".join(c if c in keep or c.isprintable() else _escape(c) for c in shown)
    return shown if len(shown) <= longest and len(text) <= longest else shown[: longest - 1] + CUT


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
