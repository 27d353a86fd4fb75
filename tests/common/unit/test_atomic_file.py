"""A replaced file has its old or its new content, at whatever point the replacement fails."""

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from elastane.common import atomic_file
from elastane.common.atomic_file import (
    open_new_directory,
    open_replacement,
    remove_partials,
    replace_file,
    sync_directory,
)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "run.json"
    path.write_bytes(b"old")
    return path


def list_names(folder):
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize("durable", [False, True])
def test_a_replacement_leaves_no_other_file(path, durable):
    replace_file(path, b"new", durable=durable)
    assert path.read_bytes() == b"new"
    assert list_names(path.parent) == ["run.json"]


def test_a_file_that_does_not_exist_yet_is_created(tmp_path):
    replace_file(tmp_path / "new.json", b"{}", durable=True)
    assert (tmp_path / "new.json").read_bytes() == b"{}"


@pytest.mark.parametrize("durable", [False, True])
def test_a_write_that_fails_halfway_keeps_the_old_file(path, durable):
    def write_half() -> None:
        with open_replacement(path, durable=durable) as file:
            file.write(b"ne")
            file.flush()
            raise OSError(errno.ENOSPC, "disk full")

    with pytest.raises(OSError, match="disk full"):
        write_half()
    assert path.read_bytes() == b"old"
    assert list_names(path.parent) == ["run.json"]


def test_a_failed_sync_keeps_the_old_file(path, monkeypatch):
    def refuse(_descriptor: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(atomic_file.os, "fsync", refuse)
    with pytest.raises(OSError, match="input/output error"):
        replace_file(path, b"new", durable=True)
    assert path.read_bytes() == b"old"
    assert list_names(path.parent) == ["run.json"]


def test_a_kill_during_a_write_keeps_the_old_file_beside_a_partial_one(path):
    child = os.fork()
    if child == 0:
        with open_replacement(path, durable=False) as file:
            file.write(b"ne")
            file.flush()
            os._exit(9)
    os.waitpid(child, 0)
    assert path.read_bytes() == b"old"
    assert len(list_names(path.parent)) == 2
    remove_partials(path)
    assert list_names(path.parent) == ["run.json"]


def test_the_partial_files_of_other_files_stay(tmp_path):
    mine, others = ".run[1].0123abcd.partial", [".run[1].json.0123abcd.partial", ".run1.0123abcd.partial"]
    for name in (mine, *others):
        (tmp_path / name).touch()
    remove_partials(tmp_path / "run[1]")
    assert list_names(tmp_path) == sorted(others)


def test_a_durable_replacement_syncs_the_content_before_the_move_and_the_directory_after_it(
    path, monkeypatch
):
    seen = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        seen.append(("directory" if is_directory else "file", path.read_bytes()))
        fsync(descriptor)

    monkeypatch.setattr(atomic_file.os, "fsync", record)
    replace_file(path, b"new", durable=True)
    assert seen == [("file", b"old"), ("directory", b"new")]
    replace_file(path, b"newer", durable=False)
    assert len(seen) == 2


@pytest.mark.parametrize(("umask", "mode", "expected"), [(0o022, 0o666, 0o644), (0, 0o600, 0o600)])
def test_the_file_has_the_requested_mode_without_the_bits_of_the_umask(path, umask, mode, expected):
    before = os.umask(umask)
    try:
        replace_file(path, b"new", durable=False, mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == expected


def test_a_link_in_place_of_the_file_is_replaced_and_not_followed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    path = tmp_path / "run.json"
    path.symlink_to(secret)
    replace_file(path, b"new", durable=False)
    assert secret.read_bytes() == b"secret"
    assert not path.is_symlink()


def test_of_two_writers_at_once_the_whole_content_of_one_remains(path):
    contents = [bytes([n]) * 100_000 for n in range(4)]
    threads = [
        threading.Thread(target=replace_file, args=(path, c), kwargs={"durable": False}) for c in contents
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert list_names(path.parent) == ["run.json"]


def test_a_file_system_that_cannot_sync_directories_is_no_error(tmp_path, monkeypatch):
    def refuse(_descriptor: int) -> None:
        raise OSError(errno.EINVAL, "invalid argument")

    monkeypatch.setattr(atomic_file.os, "fsync", refuse)
    sync_directory(tmp_path)


@pytest.mark.parametrize("durable", [False, True])
def test_a_new_directory_appears_complete(tmp_path, durable):
    path = tmp_path / "deep" / "export"
    with open_new_directory(path, durable=durable) as partial:
        (partial / "inner").mkdir()
        (partial / "inner" / "weights").write_bytes(b"1")
        assert not path.exists()
    assert (path / "inner" / "weights").read_bytes() == b"1"
    assert list_names(path.parent) == ["export"]


def test_a_directory_that_fails_halfway_does_not_appear(tmp_path):
    def write_half() -> None:
        with open_new_directory(tmp_path / "export", durable=True) as partial:
            (partial / "weights").write_bytes(b"1")
            raise OSError(errno.ENOSPC, "disk full")

    with pytest.raises(OSError, match="disk full"):
        write_half()
    assert list_names(tmp_path) == []


def test_a_new_directory_replaces_an_empty_one_and_no_other(tmp_path):
    def write(content: str) -> None:
        with open_new_directory(tmp_path / "export", durable=True) as partial:
            (partial / "weights").write_text(content)

    (tmp_path / "export").mkdir()
    write("first")
    with pytest.raises(OSError, match="not empty"):
        write("second")
    assert (tmp_path / "export" / "weights").read_text() == "first"
    assert list_names(tmp_path) == ["export"]


def test_a_durable_directory_syncs_its_files_before_the_move_and_its_parent_after_it(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync

    def record(descriptor):
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        synced.append((name, (tmp_path / "export").exists()))
        fsync(descriptor)

    monkeypatch.setattr(atomic_file.os, "fsync", record)
    with open_new_directory(tmp_path / "export", durable=True) as partial:
        (partial / "weights").write_bytes(b"1")
    assert synced == [("weights", False), (".export.partial", False), (tmp_path.name, True)]
