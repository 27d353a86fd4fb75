"""The log of a worker remembers the end of what was printed, for an error."""

import sys

from elastane.run.worker.worker_log import TAIL_BYTES, open_worker_log, read_last_lines


def test_the_last_lines_are_those_printed_last(tmp_path):
    with (tmp_path / "log").open("wb") as file:
        stream = open_worker_log(file.fileno())
        assert read_last_lines(stream, 2) == []
        for number in range(TAIL_BYTES):
            stream.write(f"line {number}\n")
        stream.write("the last one, ü")
        stream.flush()
        assert read_last_lines(stream, 2) == [f"line {TAIL_BYTES - 1}", "the last one, ü"]
        stream.write("x" * 3 * TAIL_BYTES)
        stream.flush()
        assert read_last_lines(stream, 2) == ["x" * TAIL_BYTES]


def test_another_stream_has_no_last_lines():
    assert read_last_lines(sys.__stderr__, 2) == []
