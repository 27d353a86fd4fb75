"""A controller for the length of a block, started by ``elastane up``; its processes end with the block."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import elastane
import msgspec
from elastane.cluster.nouns.controller import ControllerReady
from elastane.common.errors import RunFailed
from elastane.run.agent.presence import list_present_processes
from elastane.run.nouns.rundir import RunDir

SOURCES = Path(elastane.__file__).parents[1]
ELASTANE = (sys.executable, "-m", "elastane.cli.main")
GONE_S = 20.0


@contextmanager
def start_controller(home: Path) -> Iterator[ControllerReady]:
    """Start a controller on a free port, with its own home.

    Raises:
        RunFailed: it does not start.
    """
    home.mkdir(parents=True)
    process = subprocess.Popen(
        [*ELASTANE, "up", "--listen=127.0.0.1:0", "--json"],
        env={**os.environ, "ELASTANE_HOME": str(home), "PYTHONPATH": str(SOURCES)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # Ctrl-C is for the pilot, which ends all processes in order.
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith(b'{"url"'):
            raise RunFailed(f"elastane up did not start a controller: {line.decode()}")
        yield msgspec.json.decode(line, type=ControllerReady)
    finally:
        # The controller first, or it would begin the next attempts of its jobs.
        process.terminate()
        try:
            process.wait(GONE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        end_jobs(home)


def end_jobs(home: Path) -> None:
    """Kill every process of every job, until none is left."""
    for root in (home / "runs").glob("*"):
        while pids := list_present_processes(RunDir(root)):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
