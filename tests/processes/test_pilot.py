"""The joined cluster, as ``make pilot`` lives through it: from the API down to the workers."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

PILOT = Path(__file__).parents[2] / "benchmarks" / "shared_cluster.py"
SMALL = Path(__file__).parent / "scripts" / "small_cluster.yaml"


def pilot(tmp_path):
    """Everything it keeps is below ``tmp_path``, so that what it leaves running can be found."""
    return subprocess.Popen(
        [sys.executable, str(PILOT), str(SMALL), f"--out={tmp_path / 'out'}", "--keep"],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def left_running(tmp_path):
    """Processes of the pilot's: each names its home among its arguments."""
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
def test_jobs_stretch_give_way_fail_and_live_on_and_train_the_same_bytes(tmp_path):
    process = pilot(tmp_path)
    said, _ = process.communicate()
    assert process.returncode == 0, said
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert all(check["good"] for check in report["checks"])
    elastic = report["arms"]["elastic"]["jobs"]
    sizes = [workers for _, workers in elastic["stretches"]["sizes"]]
    assert sizes[:2] == [0, 2] or sizes[0] == 2, sizes
    assert 1 in sizes[sizes.index(2) :], "it gives a device back to the owner"
    assert elastic["stretches"]["crashes"] == 1
    assert elastic["typo"]["state"] == "failed"
    assert "<svg" in (tmp_path / "out" / "report.html").read_text()
    assert left_running(tmp_path) == []


def test_an_interrupted_pilot_ends_all_it_has_started(tmp_path):
    process = pilot(tmp_path)
    for line in process.stdout:
        if "stretches running" in line:
            break
    # Some of its processes are only just coming.
    time.sleep(2)
    assert left_running(tmp_path)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert left_running(tmp_path) == []
