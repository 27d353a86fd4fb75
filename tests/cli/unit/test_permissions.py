"""Files with secrets are readable by their owner only."""

import os
from pathlib import Path

import pytest

from elastane.cluster.controller.store.database import list_store_files
from elastane.common.errors import BadInput
from elastane.common.permissions import RIGHTS_OF_WORLD, restrict_permissions


def read_mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_permissions_of_others_are_removed_once(tmp_path) -> None:
    file = tmp_path / "controller.db"
    assert not restrict_permissions(file)
    file.touch()
    file.chmod(0o664)
    assert restrict_permissions(file)
    assert read_mode(file) == 0o600
    assert not restrict_permissions(file)


def test_a_group_keeps_its_read_permission_of_a_folder(tmp_path) -> None:
    tmp_path.chmod(0o775)
    assert restrict_permissions(tmp_path, RIGHTS_OF_WORLD)
    assert read_mode(tmp_path) == 0o750
    assert not restrict_permissions(tmp_path, RIGHTS_OF_WORLD)


def test_a_file_of_another_user_is_refused_and_stays_as_it_is(tmp_path, monkeypatch) -> None:
    file = tmp_path / "controller.db"
    file.touch()
    file.chmod(0o644)
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    with pytest.raises(BadInput, match="accessible to other users") as refused:
        restrict_permissions(file)
    assert "ELASTANE_HOME" in refused.value.do
    assert read_mode(file) == 0o644


def test_a_folder_that_everybody_can_write_to_is_refused_as_a_home(tmp_path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(BadInput, match="accessible to other users"):
        restrict_permissions(tmp_path, RIGHTS_OF_WORLD)
    assert read_mode(tmp_path) == 0o1777


def test_a_database_of_sqlite_has_files_beside_it(tmp_path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "store.db")
    names = [path.name for path in list_store_files(f"sqlite:///{tmp_path}/link")]
    assert names == ["store.db", "store.db-wal", "store.db-shm", "store.db.lock"]
    assert list_store_files("postgresql://elastane@host/name") == ()
