"""Foreign text cannot forge a line of a log, and repeated lines do not fill the disk."""

import io
import logging

import pytest

from elastane.common.log_lines import EntryFormatter, RepeatFilter, configure_handler

EVIL = "x\n2026-11-22 00:00:00,000 elastane.cluster.controller INFO forged\x1b[2J\x9b\u202e\r\0"


@pytest.fixture
def logger():
    found = logging.getLogger("elastane.test")
    found.propagate = False
    found.written = io.StringIO()
    handler = configure_handler(logging.StreamHandler(found.written))
    found.addHandler(handler)
    yield found
    found.removeHandler(handler)
    found.propagate = True


def list_entries(logger):
    """Return the lines that begin an entry."""
    return [line for line in logger.written.getvalue().splitlines() if not line.startswith("  ")]


def test_a_message_and_its_arguments_are_one_entry(logger):
    logger.warning("job %s: %s", EVIL, EVIL)
    assert len(list_entries(logger)) == 1
    assert logger.written.getvalue().replace("\n", "").isprintable()


def test_a_traceback_whose_error_is_hostile_is_one_entry(logger):
    logger.error("it failed", exc_info=ValueError(EVIL))
    (first,) = list_entries(logger)
    assert first.endswith("it failed")
    assert "ValueError" in logger.written.getvalue()
    assert logger.written.getvalue().replace("\n", "").isprintable()


def test_the_length_of_an_entry_is_bounded(logger):
    logger.warning("x" * 1_000_000)
    assert len(logger.written.getvalue()) < 25_000


def record(message):
    return logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, message, (), None)


def test_repeats_of_a_message_are_counted_and_the_count_is_logged():
    now_s = 0.0
    repeats = RepeatFilter(most=3, clock=lambda: now_s)
    assert [repeats.filter(record("no request")) for _ in range(100)] == [True] * 3 + [False] * 97
    assert repeats.filter(record("another"))
    now_s = 61.0
    later = record("no request")
    assert repeats.filter(later)
    assert "97 more times" in EntryFormatter().format(later)


def test_the_number_of_counted_messages_is_bounded():
    repeats = RepeatFilter()
    for number in range(5000):
        repeats.filter(record(f"message {number}"))
    assert len(repeats._counts) <= RepeatFilter.MOST_MESSAGES + 1
