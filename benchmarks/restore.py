"""Measure how long workers need to restore a state: Elastane, `dcp.load` and a raw read.

The number of workers is that which saved the state, and another one. The raw read with a checksum of every
byte is the floor for every reader that checks its data.

All processes read all files, as in a run with whole copies. The files
are in the page cache, because `elastane run --resume` checks every byte of them before it starts a worker.
"""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from elastane_run import ElastaneRun, read_number
from job import HERE, Job
from setting import Setting
from usual_step import compute_ratios

VIRTUAL_RANKS = 6
SAVED_BY = 2
WORKERS = (1, 2)
EVERY = "4 steps"
DICE = random.Random(0)


def measure(setting: Setting) -> dict[str, Any]:
    """Return the seconds of the slowest process, by number of workers and contestant."""
    job = Job(setting.state, 1_000_000, VIRTUAL_RANKS, setting.work / "restore")
    folder = setting.work / "restore-run"
    with ElastaneRun(job, folder, start=SAVED_BY, most=max(WORKERS), checkpoints=EVERY) as run:
        run.wait(lambda: bool(run.read_events("checkpoint.saved")), "a checkpoint")
        nbytes = read_number(run.read_events("checkpoint.saved")[0], "bytes")
        found = {str(workers): measure_workers(setting, run, workers) for workers in WORKERS}
    return {"bytes": nbytes, "saved_by": SAVED_BY, "workers": found}


def measure_workers(setting: Setting, run: ElastaneRun, workers: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"elastane": [], "raw": [], "checked": [], "dcp": []}
    for _ in range(setting.repetitions):
        seconds["elastane"].append(restore_in_workers(run, workers))
        newest = max((run.run_dir.root / "checkpoints").glob("step-*/COMPLETE")).parent
        for how in ("raw", "checked", "dcp"):
            seconds[how].append(restore_in_processes(how, newest, setting.state, workers))
    return {
        "seconds": seconds,
        "raw_over_elastane": compute_ratios(seconds["raw"], seconds["elastane"]),
        "checked_over_elastane": compute_ratios(seconds["checked"], seconds["elastane"]),
        "dcp_over_elastane": compute_ratios(seconds["dcp"], seconds["elastane"]),
    }


def restore_in_workers(run: ElastaneRun, workers: int) -> float:
    """Kill all processes, resume, return the seconds that the workers report, and kill them again."""
    run.kill_everything(DICE)
    before = len(run.read_events("checkpoint.restored"))
    run.resume(start=workers, copies="all")
    run.wait(
        lambda: len(run.read_events("checkpoint.restored")) == before + workers,
        f"all {workers} workers restored it",
    )
    run.kill_everything(DICE)
    return max(read_number(event, "seconds") for event in run.read_events("checkpoint.restored")[before:])


def restore_in_processes(how: str, checkpoint: Path, size: str, processes: int) -> float:
    """Return the seconds of the slowest of some processes that read at once, each into mapped memory."""
    command = [sys.executable, str(HERE / "read_back.py"), how, str(checkpoint), size]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return max(float(process.communicate()[0]) for process in started)
