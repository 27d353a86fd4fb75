"""How long it takes to have a state back on 1, 2 or 3 workers: Elastane beside `dcp.load` and a raw read.

All read the same files, each process everything, as all processes of a run with whole copies must. The files
are in the page cache: `elastane run --resume` has just checked every byte of them before it starts a worker.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

from elastane.api.records import EventLine
from elastane.api.rundir import RunDir

from elastane_run import ElastaneRun, events
from job import HERE, Job
from setting import Setting
from usual_step import ratios

VIRTUAL_RANKS = 6
SAVED_BY = 2
WORKERS = (1, 2, 3)


def measure(setting: Setting) -> dict[str, Any]:
    """Seconds of the slowest process, by number of workers and contestant."""
    job = Job(setting.state, 1_000_000, VIRTUAL_RANKS, setting.work / "restore")
    folder = setting.work / "restore-run"
    with ElastaneRun(job, folder, start=SAVED_BY, most=max(WORKERS), checkpoints="2 steps") as run:
        run.wait(lambda: bool(run.events("checkpoint.saved")), "a checkpoint")
        nbytes = run.events("checkpoint.saved")[0].detail["bytes"]
    return {
        "bytes": nbytes,
        "saved_by": SAVED_BY,
        "workers": {str(workers): one(setting, job, folder, workers) for workers in WORKERS},
    }


def one(setting: Setting, job: Job, folder: Path, workers: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"elastane": [], "raw": [], "dcp": []}
    for _ in range(setting.repetitions):
        seconds["elastane"].append(in_workers(job, folder, workers))
        newest = max((RunDir(folder / "run").root / "checkpoints").glob("step-*/COMPLETE")).parent
        seconds["raw"].append(in_processes("raw", newest, setting.state, workers))
        seconds["dcp"].append(in_processes("dcp", newest, setting.state, workers))
    return {
        "seconds": seconds,
        "raw_over_elastane": ratios(seconds["raw"], seconds["elastane"]),
        "dcp_over_elastane": ratios(seconds["dcp"], seconds["elastane"]),
    }


def in_workers(job: Job, folder: Path, workers: int) -> float:
    """As the workers themselves tell it, of a run that goes on and is ended right after."""
    run_dir = RunDir((folder / "run").absolute())
    before = len(events(run_dir, "checkpoint.restored"))
    with ElastaneRun(
        job, folder, start=workers, most=max(WORKERS), checkpoints="1000000 steps", resume=True
    ) as run:

        def restored() -> list[EventLine]:
            return events(run_dir, "checkpoint.restored")[before:]

        run.wait(lambda: len(restored()) == workers, f"all {workers} workers restored it")
        found = restored()
    return max(float(event.detail["seconds"]) for event in found)


def in_processes(how: str, checkpoint: Path, size: str, processes: int) -> float:
    """The slowest of some processes that begin to read at once, each into memory that it has."""
    command = [sys.executable, str(HERE / "read_back.py"), how, str(checkpoint), size]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    for process in started:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        process.stdout.readline()
    for process in started:
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        process.stdin.write("go\n")
        process.stdin.flush()
    return max(float(process.communicate()[0]) for process in started)


