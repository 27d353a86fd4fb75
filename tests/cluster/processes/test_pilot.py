"""The shared cluster of ``make pilot``, from the API to the workers."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.waiting import WAIT_S

pytestmark = pytest.mark.processes

PILOT = Path(__file__).parents[3] / "benchmarks" / "shared_cluster.py"
SMALL = Path(__file__).parent / "small_cluster.yaml"


def start_pilot(tmp_path):
    """Start the pilot with all its files below ``tmp_path``, so that its processes can be found."""
    return subprocess.Popen(
        [sys.executable, str(PILOT), str(SMALL), f"--out={tmp_path / 'out'}", "--keep"],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def list_processes(tmp_path):
    """Return the commands of the pilot's processes; each names the home among its arguments."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if str(tmp_path).encode() in words and int(process.name) != os.getpid():
            found.append(words.replace(b"\0", b" ").decode())
    return found


@pytest.mark.long
@pytest.mark.timeout(600)
def test_jobs_grow_shrink_fail_and_resume_and_train_the_same_bytes(tmp_path):
    process = start_pilot(tmp_path)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert all(check["good"] for check in report["checks"])
    elastic = report["arms"]["elastic"]["jobs"]
    sizes = [workers for _, workers in elastic["stretches"]["sizes"]]
    assert sizes[:2] == [0, 2] or sizes[0] == 2, sizes
    assert 1 in sizes[sizes.index(2) :], "the job gives a device back to its owner"
    assert elastic["stretches"]["crashes"] == 1
    assert elastic["typo"]["state"] == "failed"
    assert "<svg" in (tmp_path / "out" / "report.html").read_text()
    assert list_processes(tmp_path) == []


def test_an_interrupted_pilot_ends_all_processes_that_it_has_started(tmp_path):
    process = start_pilot(tmp_path)
    for line in process.stdout:
        if "stretches running" in line:
            break
    time.sleep(2)  # not a wait: the interruption comes while processes start
    assert list_processes(tmp_path)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130, output
    assert list_processes(tmp_path) == []
