"""A run directory is read completely, or the damaged line is named."""

import fcntl

import pytest

from elastane.common.confined_files import ConfinedDirectory
from elastane.common.errors import BadInput, NoSuchRun
from elastane.run.attempts.run_directory import reclaim_run_directory
from elastane.run.connections.run_lock import is_live
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.line_files import read_last_line
from elastane.run.observability.run_files import decode_ledger_line, read_run
from elastane.run.observability.tail import Tail


def test_a_written_run_is_read_back(make_run) -> None:
    run = make_run()
    make_run.write(run)
    assert read_run(run.run_dir) == run


def test_a_directory_without_run_json_is_not_a_run(tmp_path) -> None:
    with pytest.raises(NoSuchRun, match=r"no run\.json"):
        read_run(RunDir(tmp_path))


def test_a_run_that_has_just_begun_is_empty(make_run) -> None:
    run_dir = make_run.write(make_run())
    run_dir.ledger.unlink()
    assert read_run(run_dir).ledger == ()


def test_a_damaged_line_is_named(make_run) -> None:
    run_dir = make_run.write(make_run())
    lines = run_dir.ledger.read_bytes().splitlines(keepends=True)
    lines[2] = b'{"step": "three"}\n'
    run_dir.ledger.write_bytes(b"".join(lines))
    with pytest.raises(BadInput, match=r"ledger\.jsonl, line 3"):
        read_run(run_dir)


def test_a_torn_last_line_is_ignored_only_while_the_run_is_live(make_run) -> None:
    run_dir = make_run.write(make_run())
    run_dir.ledger.write_bytes(run_dir.ledger.read_bytes()[:-5])
    with run_dir.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_live(run_dir)
        assert len(read_run(run_dir).ledger) == 5
    assert not is_live(run_dir)
    with pytest.raises(BadInput, match=r"line 6: the line is incomplete"):
        read_run(run_dir)


def test_an_unknown_schema_is_refused(make_run) -> None:
    run_dir = make_run.write(make_run())
    run_dir.run.write_text(run_dir.run.read_text().replace('"schema":1', '"schema":99'))
    with pytest.raises(BadInput, match="schema 99"):
        read_run(run_dir)


def test_the_last_line_is_found_without_reading_all(make_run) -> None:
    run_dir = make_run.write(make_run())
    newest = read_last_line(run_dir.ledger, decode_ledger_line, within_bytes=1000)
    assert newest is not None
    assert newest.step == 6
    assert read_last_line(run_dir.root / "none", decode_ledger_line) is None


def test_a_tail_waits_for_the_rest_of_a_line(tmp_path) -> None:
    path = tmp_path / "log"
    tail = Tail(ConfinedDirectory(tmp_path), path)
    assert tail.read_new_lines() == []
    path.write_bytes(b"one\ntw")
    assert tail.read_new_lines() == [b"one"]
    with path.open("ab") as file:
        file.write(b"o\nthree")
    assert tail.read_new_lines() == [b"two"]
    assert tail.read_new_lines(at_end=True) == [b"three"]
    path.write_bytes(b"new\n")
    assert tail.read_new_lines() == [b"new"]


def test_a_run_is_live_as_long_as_one_of_its_machines_takes_part(make_run) -> None:
    run_dir = make_run.write(make_run())
    other = RunDir(run_dir.root, "b").node_files.lock
    with other.open("w") as lock:
        assert not is_live(run_dir)
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_live(run_dir)
        with pytest.raises(BadInput, match="goes on: b takes part"), reclaim_run_directory(run_dir):
            pass
    assert not is_live(run_dir)
