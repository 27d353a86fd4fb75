"""The real fork server, which forks workers from one process that has imported everything."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from elastane.run.agent.environment import build_worker_environment
from elastane.run.agent.hang_detection import HeartbeatFile
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunRecord, RunSpec
from tests.waiting import WAIT_S

pytestmark = pytest.mark.processes


@pytest.fixture
def warm(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\nprint('hello from the script', 'colorsys' in sys.modules, flush=True)\nos._exit(7)\n"
    )
    run_dir = RunDir(tmp_path)
    run_dir.logs.mkdir()
    HeartbeatFile(run_dir.node_files.beats).close()
    spec = RunSpec(name="n", script=str(script), preload=("no_such.module", "colorsys"))
    record = RunRecord(spec=spec, created="2026-01-01T00:00:00Z")
    run_dir.run.write_bytes(msgspec.json.encode(record))
    lifeline, end = os.pipe()
    options = ("--run-dir", str(tmp_path), "--lifeline", str(lifeline), "--attempt", "0")
    process = subprocess.Popen(
        (sys.executable, "-P", "-m", "elastane.run.worker.fork_server", *options),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(lifeline,),
        env=build_worker_environment(os.environ, threads=1),
        bufsize=0,
    )
    os.close(lifeline)
    yield process, run_dir, end
    process.kill()
    process.wait(WAIT_S)
    process.stdin.close()
    process.stdout.close()
    os.close(end)


def test_the_fork_server_forks_workers_logs_their_output_and_reports_exit_codes(warm) -> None:
    process, run_dir, _ = warm
    assert json.loads(process.stdout.readline()) == {"event": "ready"}
    # Threads do not survive a fork, so there must be none.
    assert len(list(Path(f"/proc/{process.pid}/task").iterdir())) == 1
    process.stdin.write(b'{"start": [{"worker": 3}]}\n')
    started = json.loads(process.stdout.readline())
    assert (started["event"], started["worker"]) == ("started", 3)
    ended = json.loads(process.stdout.readline())
    assert ended == {"event": "exited", "worker": 3, "pid": started["pid"], "code": 7}
    # A module of ``preload`` that is missing stops nothing.
    assert "hello from the script True" in run_dir.log("worker-3").read_text()
    process.stdin.close()
    assert process.wait(WAIT_S) == 0
