"""Following a file that grows."""

from elastane.observability.tail import Tail


def test_only_the_end_of_a_long_file_is_read_from_a_whole_line_on(tmp_path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%03d\n" % number for number in range(100)))
    tail = Tail(path, within_bytes=10)
    assert tail.new_lines() == [b"098", b"099"]
    with path.open("ab") as file:
        file.write(b"100\n10")
    assert tail.new_lines() == [b"100"]


def test_a_file_shorter_than_that_is_read_whole(tmp_path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"1\n2\n")
    assert Tail(path, within_bytes=10).new_lines() == [b"1", b"2"]


def test_a_file_that_does_not_exist_yet_is_read_from_its_beginning(tmp_path) -> None:
    path = tmp_path / "lines"
    tail = Tail(path, within_bytes=10)
    assert tail.new_lines() == []
    path.write_bytes(b"1\n")
    assert tail.new_lines() == [b"1"]
