"""Log formats and filters: text from outside cannot forge a line, and repeated messages are limited."""

import logging
import time
from collections.abc import Callable

from elastane.common.safe_text import format_entry

LONGEST_ENTRY = 20_000
"""The most characters of one entry; a long traceback has 10,000."""
FORMAT = "%(asctime)s %(name)s %(levelname)s %(message)s"


class EntryFormatter(logging.Formatter):
    """Escapes control characters, and indents every line of an entry but the first."""

    def __init__(self) -> None:
        super().__init__(FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        return format_entry(super().format(record), LONGEST_ENTRY)


class RepeatFilter(logging.Filter):
    """Passes a message a few times a minute, then counts how often it was suppressed.

    Any process that can connect can cause some of the messages as often as it likes.

    Args:
        most: how often one message passes within a minute.
        clock: monotonic seconds.
    """

    PERIOD_S = 60.0
    MOST_MESSAGES = 1000

    def __init__(self, most: int = 10, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._most = most
        self._clock = clock
        self._begun_s = clock()
        self._counts: dict[tuple[str, str], int] = {}
        self._suppressed: dict[tuple[str, str], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now_s = self._clock()
        if now_s - self._begun_s >= self.PERIOD_S or len(self._counts) > self.MOST_MESSAGES:
            left_out = {key: count - self._most for key, count in self._counts.items() if count > self._most}
            self._begun_s, self._counts, self._suppressed = now_s, {}, left_out
        message = record.getMessage()
        key = (record.name, message)
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if count == 1 and (missing := self._suppressed.pop(key, 0)):
            record.msg, record.args = f"{message} ({missing} more times before)", ()
        return count <= self._most


class LogFile(logging.FileHandler):
    """A log that loses its lines on a full disk, and ends nothing."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - a name of logging
        pass


def configure_handler(handler: logging.Handler) -> logging.Handler:
    """Give a handler the format of all logs of Elastane."""
    handler.setFormatter(EntryFormatter())
    handler.addFilter(RepeatFilter())
    return handler
