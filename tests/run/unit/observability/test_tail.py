"""Following a file that grows."""

import pytest

from elastane.common.confined_files import ConfinedDirectory
from elastane.common.errors import BadInput
from elastane.run.observability.tail import Tail
from tests.hostile import replace_with_stand_in


def test_of_a_long_file_only_the_last_whole_lines_are_read(tmp_path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%03d\n" % number for number in range(100)))
    tail = Tail(ConfinedDirectory(tmp_path), path, within_bytes=10)
    assert tail.read_new_lines() == [b"098", b"099"]
    with path.open("ab") as file:
        file.write(b"100\n10")
    assert tail.read_new_lines() == [b"100"]


def test_a_short_file_is_read_whole(tmp_path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"1\n2\n")
    assert Tail(ConfinedDirectory(tmp_path), path, within_bytes=10).read_new_lines() == [b"1", b"2"]


def test_a_file_that_does_not_exist_yet_is_read_from_its_beginning(tmp_path) -> None:
    path = tmp_path / "lines"
    tail = Tail(ConfinedDirectory(tmp_path), path, within_bytes=10)
    assert tail.read_new_lines() == []
    path.write_bytes(b"1\n")
    assert tail.read_new_lines() == [b"1"]


def test_a_file_that_grows_faster_than_it_is_read_is_followed_from_its_end(tmp_path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"000\n")
    tail = Tail(ConfinedDirectory(tmp_path), path, within_bytes=10)
    assert tail.read_new_lines() == [b"000"]
    with path.open("ab") as file:
        file.write(b"".join(b"%03d\n" % number for number in range(1, 100)))
    assert tail.read_new_lines() == [b"098", b"099"]


def test_a_line_that_is_too_long_is_skipped(tmp_path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"1\n")
    tail = Tail(ConfinedDirectory(tmp_path), path, within_bytes=10)
    assert tail.read_new_lines() == [b"1"]
    for _ in range(5):
        with path.open("ab") as file:
            file.write(b"xxxxxx")
        assert tail.read_new_lines() == []
    with path.open("ab") as file:
        file.write(b"x\n2\n")
    assert tail.read_new_lines() == [b"2"]


@pytest.mark.parametrize("stand_in", ["a pipe", "a directory", "an endless device"])
def test_other_than_regular_files_are_not_followed(tmp_path, stand_in) -> None:
    replace_with_stand_in(tmp_path / "lines", stand_in)
    with pytest.raises(BadInput, match="cannot be followed"):
        Tail(ConfinedDirectory(tmp_path), tmp_path / "lines").read_new_lines()
