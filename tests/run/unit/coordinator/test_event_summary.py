"""A new coordinator reads a small part of long files, but every change."""

import msgspec
import pytest

from elastane.run.coordinator import event_summary
from elastane.run.coordinator.event_summary import summarize_events
from elastane.run.coordinator.record_files import AppendFile
from elastane.run.nouns.records import EventLine
from elastane.run.observability.line_files import READ_BYTES


@pytest.fixture
def write(tmp_path):
    def write_events(events) -> object:
        path = tmp_path / "events.jsonl"
        path.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
        return path

    return write_events


def make_prints(count: int) -> list[EventLine]:
    trap = 'as in "kind":"worker.died"'
    return [
        EventLine(time=1.0, kind="message", why=trap, step=step, key=f"print-{step}-1")
        for step in range(count)
    ]


DIED = EventLine(time=2.0, kind="worker.died", who="worker 3", workers=(3,), generation=7)


@pytest.mark.parametrize("change_at", [0, 10_000, 20_000])
def test_changes_among_many_printed_lines_are_found(write, change_at) -> None:
    events = make_prints(20_000)
    events.insert(change_at, DIED)
    read = list(event_summary.read_changes(write(events)))
    assert DIED in read
    assert len(read) < 12_000
    assert read[-5:] == events[-5:]
    assert summarize_events(read).worker_events == {("worker.died", 3)}


def test_a_short_file_is_read_completely(write) -> None:
    events = [*make_prints(5), DIED, *make_prints(5)]
    assert list(event_summary.read_changes(write(events))) == events
    assert list(event_summary.read_changes(write([]))) == []


@pytest.mark.parametrize("length", [0, 1, READ_BYTES - 1, READ_BYTES, 3 * READ_BYTES])
def test_the_last_whole_line_of_any_length_is_found(tmp_path, length) -> None:
    path = tmp_path / "lines"
    for torn in (b"", b"t", b"t" * (2 * READ_BYTES)):
        path.write_bytes(b"first\n" + b"x" * length + b"\n" + torn)
        file = AppendFile(path)
        assert file.last_line == b"x" * length
        file.append(b"next")
        assert file.flush() is None
        assert path.read_bytes() == b"first\n" + b"x" * length + b"\nnext\n"
        file.close()


def test_a_file_with_only_a_torn_line_has_no_last_line(tmp_path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"torn")
    file = AppendFile(path)
    assert file.last_line is None
    assert path.read_bytes() == b""
    file.close()
