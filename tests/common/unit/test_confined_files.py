"""Reading below a directory never leaves it, and never waits."""

import os

import pytest

from elastane.common.confined_files import ConfinedDirectory
from elastane.common.untrusted_data import Malformed
from tests.hostile import replace_with_stand_in


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "private").write_text("private")
    return folder


@pytest.fixture
def inside(tmp_path):
    (tmp_path / "run/logs").mkdir(parents=True)
    (tmp_path / "run/logs/a.log").write_text("own")
    return ConfinedDirectory(tmp_path / "run")


def test_files_below_the_directory_are_read_and_listed(inside) -> None:
    path = inside.root / "logs/a.log"
    assert inside.read(path) == b"own"
    assert inside.find_size(path) == 3
    assert inside.list_files(inside.root / "logs") == {"a.log": 3}
    assert inside.list_folders(inside.root) == ["logs"]
    assert inside.list_files(inside.root / "missing") == {}
    with pytest.raises(Malformed, match="more than 2 bytes"):
        inside.read(path, 2)


def test_a_link_to_the_directory_itself_is_followed(inside, tmp_path) -> None:
    (tmp_path / "name").symlink_to("run")
    named = ConfinedDirectory(tmp_path / "name")
    assert named.read(named.root / "logs/a.log") == b"own"


@pytest.mark.parametrize("place", ["file", "logs/file", "linked/private", "deep/linked/private"])
def test_no_link_is_followed_at_any_depth(inside, outside, place) -> None:
    path = inside.root / place
    if "linked" in place:
        path.parent.parent.mkdir(exist_ok=True)
        path.parent.symlink_to(outside)
    else:
        path.symlink_to(outside / "private")
    with pytest.raises(Malformed, match="symbolic link"):
        inside.read(path)
    assert inside.find_size(path) is None
    if "linked" in place:
        with pytest.raises(Malformed, match="symbolic link"):
            inside.list_files(path.parent)


def test_a_path_cannot_lead_out(inside) -> None:
    with pytest.raises(Malformed, match="leads out"):
        inside.read(inside.root / "logs/../../outside/private")
    with pytest.raises(ValueError, match="not in the subpath"):
        inside.read(inside.root.parent / "outside/private")


@pytest.mark.parametrize("stand_in", ["a pipe", "a directory", "an endless device", "a terminal"])
def test_other_than_regular_files_are_refused_without_waiting(inside, stand_in) -> None:
    replace_with_stand_in(inside.root / "file", stand_in)
    with pytest.raises(Malformed, match="not a regular file"):
        inside.read(inside.root / "file")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_another_users_file_under_a_second_name_is_refused(inside, outside) -> None:
    os.chown(outside / "private", 1234, 1234)
    os.link(outside / "private", inside.root / "file")
    with pytest.raises(Malformed, match="another name"):
        inside.read(inside.root / "file")
    (outside / "private").unlink()
    assert inside.read(inside.root / "file") == b"private"


def test_a_second_name_of_an_own_file_is_read(inside) -> None:
    os.link(inside.root / "logs/a.log", inside.root / "file")
    assert inside.read(inside.root / "file") == b"own"


def test_a_file_of_holes_is_refused(inside) -> None:
    with (inside.root / "file").open("wb") as file:
        file.write(b"x" * 5000)
        file.truncate(1 << 40)
    with pytest.raises(Malformed, match="are holes"):
        inside.open(inside.root / "file")


def test_a_file_with_some_holes_is_read_from_its_beginning(inside) -> None:
    with (inside.root / "file").open("wb") as file:
        file.write(b"beginning")
        file.truncate(1 << 29)
    with inside.open(inside.root / "file") as file:
        assert file.read(9) == b"beginning"
