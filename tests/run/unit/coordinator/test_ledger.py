"""The ledger loses, repeats and reorders no line, even on a full disk."""

import errno
import os
import shutil

import msgspec
import pytest

from elastane.run.coordinator.record_files import Ledger, open_copy_to_append
from elastane.run.nouns.control import StepReport
from elastane.run.nouns.records import LedgerLine


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def reports(line):
    def make(*steps: int, worker: int = 0, seconds: float = 0.1) -> list[StepReport]:
        return [
            StepReport(
                worker=worker,
                line=msgspec.structs.replace(line(step), seconds={"step": seconds}),
                step_s=seconds,
                healthy=True,
            )
            for step in steps
        ]

    return make


def read_steps(path) -> list[int]:
    return [msgspec.json.decode(text, type=LedgerLine).step for text in path.read_bytes().splitlines()]


def test_steps_are_written_in_order_once_and_without_gaps(path, reports) -> None:
    ledger = Ledger(path)
    ledger.take(reports(2, 1, 2, 4))
    assert ledger.flush() is None
    assert (read_steps(path), ledger.step) == ([1, 2], 2)
    ledger.take(reports(3, 2, worker=1))
    ledger.flush()
    assert (read_steps(path), ledger.step) == ([1, 2, 3, 4], 4)
    ledger.close()


def test_a_line_has_the_longest_times_of_its_reports(path, reports) -> None:
    ledger = Ledger(path)
    ledger.take([*reports(1, seconds=0.1), *reports(1, worker=1, seconds=0.3), *reports(1, worker=2)])
    ledger.flush()
    assert ledger.last is not None
    assert ledger.last.seconds == {"step": 0.3}
    ledger.close()


def test_a_new_ledger_continues_after_the_last_whole_line(path, reports) -> None:
    ledger = Ledger(path)
    ledger.take(reports(1, 2))
    ledger.flush()
    ledger.close()
    with path.open("ab") as file:
        file.write(b'{"step":3,"gener')
    ledger = Ledger(path)
    assert (ledger.step, read_steps(path)) == (2, [1, 2])
    ledger.take(reports(2, 3))
    ledger.flush()
    assert read_steps(path) == [1, 2, 3]
    ledger.close()


def test_a_full_disk_delays_lines_without_loss(path, reports) -> None:
    room = [700]

    def write(fd: int, data: bytes) -> int:
        if room[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = os.write(fd, data[: room[0]])
        room[0] -= taken
        return taken

    ledger = Ledger(path, write=write)
    ledger.take(reports(1, 2, 3, 4, 5))
    error = ledger.flush()
    assert error is not None
    assert error.errno == errno.ENOSPC
    on_disk = ledger.step
    assert 0 < on_disk < 5
    ledger.take(reports(6))
    assert ledger.flush() is not None
    assert ledger.step == on_disk
    room[0] = 1 << 20
    assert ledger.flush() is None
    assert (read_steps(path), ledger.step) == ([1, 2, 3, 4, 5, 6], 6)
    ledger.close()


def test_a_stale_writer_on_another_machine_loses_the_file(path, reports) -> None:
    stale = Ledger(path)
    stale.take(reports(1, 2))
    stale.flush()
    ledger = Ledger(path, open_copy_to_append)
    assert (ledger.step, read_steps(path)) == (2, [1, 2])
    stale.take(reports(3, seconds=9.0))
    stale.flush()
    ledger.take(reports(3))
    ledger.flush()
    assert ledger.last is not None
    assert ledger.last.seconds == {"step": 0.1}
    assert read_steps(path) == [1, 2, 3]


def test_a_ledger_comes_back_to_its_name(path, reports) -> None:
    """A coordinator of an earlier term that was stopped may move its copy there much later."""
    Ledger(path).close()
    ledger = Ledger(path, open_copy_to_append)
    ledger.take(reports(1))
    ledger.flush()
    stale = path.with_name("stale")
    shutil.copy(path, stale)
    ledger.take(reports(2))
    ledger.flush()
    assert ledger.file.has_name()
    stale.rename(path)
    assert (read_steps(path), ledger.file.has_name()) == ([1], False)
    ledger.take(reports(3))
    ledger.flush()
    assert ledger.file.take_name_back() is None
    assert read_steps(path) == [1, 2, 3]
    ledger.take(reports(4))
    assert (ledger.flush(), ledger.sync(4)) == (None, True)
    assert read_steps(path) == [1, 2, 3, 4]
    path.unlink()
    assert not ledger.file.has_name()
    assert ledger.file.take_name_back() is None
    assert (read_steps(path), ledger.file.has_name()) == ([1, 2, 3, 4], True)
    ledger.close()


def test_a_ledger_that_cannot_have_its_name_says_so(path, reports) -> None:
    ledger = Ledger(path)
    ledger.take(reports(1))
    ledger.flush()
    path.unlink()
    path.mkdir()
    assert isinstance(ledger.file.take_name_back(), OSError)
    path.rmdir()
    assert ledger.file.take_name_back() is None
    assert read_steps(path) == [1]
    ledger.close()


def test_a_ledger_that_does_not_exist_yet_needs_no_copy(path, reports) -> None:
    ledger = Ledger(path, open_copy_to_append)
    ledger.take(reports(1))
    ledger.flush()
    assert read_steps(path) == [1]
