"""A run finishes although its output cannot be written: to a full disk, or to a reader that is gone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import elastane
from tests.waiting import WAIT_S

from .stage import SCRIPTS

pytestmark = pytest.mark.processes

SOURCES = Path(elastane.__file__).parents[1]


def open_unread_pipe() -> int:
    """Return the end of a pipe without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def open_full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize("as_json", [(), ("--json",)])
@pytest.mark.parametrize("open_output", [open_unread_pipe, open_full_disk])
def test_a_run_trains_to_its_end_without_its_output(tmp_path, open_output, as_json):
    directory = tmp_path / "run"
    command = [sys.executable, "-P", "-m", "elastane", "run", "--workers", "1", *as_json]
    output = open_output()
    try:
        done = subprocess.run(
            [*command, "--run-dir", str(directory), str(SCRIPTS / "smallest.py")],
            stdout=output,
            stderr=output,
            check=False,
            timeout=WAIT_S,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCES), "ELASTANE_HOME": str(tmp_path)},
        )
    finally:
        os.close(output)
    logs = [path.read_text() for path in (directory / "logs").iterdir()]
    assert done.returncode == 0, logs
    assert '"kind":"run.finished"' in (directory / "events.jsonl").read_text()
    assert (directory / "report.html").is_file()
