"""The words of notifications: short, in one form for all services, and without markup of others. Pure.

The services read a message as plain text, as HTML, or as one of several kinds of markup, and turn addresses
into links. A job chooses its name and the reason of its end, so only characters without a meaning in any
of these are kept of such a text.
"""

import re
from collections.abc import Sequence

from elastane.cluster.controller.notifications.stored_target import Message, StoredNotification
from elastane.common.safe_text import CUT

LARGEST_BYTES = 2000
"""Limit of a message with its title: some services refuse longer ones."""
LONGEST_REASON = 300
"""Characters of a text that a job has written."""
PLAIN = frozenset(" .,:;+=%'\"-/_")
"""The characters besides letters and digits that no service takes for markup; `_` only within a word."""
AGAIN = "Some of this may have been sent before: an earlier attempt ended without an answer."
_LOOSE = re.compile(r"(?<![^\W_])_+|_+(?![^\W_])")
"""Underscores that are not within a word, as they are in names."""


def remove_markup(text: str) -> str:
    """Return a text of others in one line, with a space for every character that could be markup."""
    plain = "".join(
        c if c.isalnum() or c in PLAIN else " " for c in _LOOSE.sub(" ", text[: 4 * LONGEST_REASON])
    )
    # An address becomes a link in most services; so does a domain after www.
    broken = plain.replace("://", ": //").replace("www.", "www .")
    joined = " ".join(broken.split())
    return joined if len(joined) <= LONGEST_REASON else joined[: LONGEST_REASON - 1] + CUT


def write_title(messages: Sequence[StoredNotification]) -> str:
    """Return the title of a message about these events."""
    if len(messages) > 1:
        return f"Elastane: {len(messages)} events"
    message = messages[0].message
    return f"Elastane: {message.job} {message.on}" if message.job else "Elastane: test"


def write_body(messages: Sequence[StoredNotification], left_out: int = 0) -> str:
    """Return the text about these events, a line for each, and how many messages were dropped before."""
    lines = [format_line(entry.message) for entry in messages]
    if left_out:
        lines.append(f"{left_out} more were left out, because too many waited: read elastane events")
    if any(entry.again for entry in messages):
        lines.append(AGAIN)
    return "\n".join(lines)


def format_line(message: Message) -> str:
    return f"{message.text}. Key {message.key}"


def choose_fitting(waiting: Sequence[StoredNotification], left_out: int = 0) -> Sequence[StoredNotification]:
    """Return the first of these messages, as many as fit into one. At least one always does."""
    count = 1
    while count < len(waiting):
        more = waiting[: count + 1]
        if len(f"{write_title(more)}\n{write_body(more, left_out)}".encode()) > LARGEST_BYTES:
            break
        count += 1
    return waiting[:count]
