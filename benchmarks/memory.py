"""Measure the peak memory of a worker, with Elastane and with DDP.

The measure is the proportional set size (PSS): a page that several processes share, such as Elastane's
gradients and libraries, counts in equal parts to these processes. So the sum over processes is the memory in
use.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import ddp
from elastane_run import ElastaneRun
from job import Job
from processes import Processes
from setting import Setting

VIRTUAL_RANKS = 4
STEPS = 4
EVERY_S = 0.05
REPETITIONS = 2  # the peak hardly varies


def measure(setting: Setting) -> dict[str, Any]:
    """Return the peak PSS sum of a contestant's processes, divided by its workers, in MB."""
    peaks: dict[str, list[float]] = {}
    for repetition in range(REPETITIONS):
        for workers, copies in ((2, "all"), (4, "2")):
            ddp_name, our_name = f"ddp_{workers}", f"elastane_{workers}_copies_{copies}"
            out = setting.work / f"memory-{workers}-{repetition}"
            job = Job(setting.memory, STEPS, VIRTUAL_RANKS, out / "ddp")
            peaks.setdefault(ddp_name, []).append(measure_ddp(job, workers) / workers)
            job = Job(setting.memory, STEPS, VIRTUAL_RANKS, out / "elastane")
            ours, overhead = measure_elastane(job, workers, copies)
            peaks.setdefault(our_name, []).append(ours / workers)
            peaks.setdefault(f"{our_name}_other_processes", []).append(overhead)
    return {"size": setting.memory, "peak_mb_per_worker": peaks}


def measure_ddp(job: Job, workers: int) -> float:
    with Processes(job.out / "logs") as processes:
        pids = ddp.start(processes, job, workers)
        with Peak(lambda: pids) as peak:
            processes.finish(timeout_s=600)
    return peak.mb


def measure_elastane(job: Job, workers: int, copies: str) -> tuple[float, float]:
    """Return the peak of the workers, and that of agent, coordinator and fork server together."""
    with ElastaneRun(job, job.out / "logs", start=workers, most=workers, copies=copies) as run:
        run.wait(run.run_dir.lock.exists, "the lock of the run")
        run.wait(lambda: len(run.read_worker_pids()) == workers, "all workers started")
        pids = list(run.read_worker_pids().values())
        roles = ("coordinator", "fork-server", "agent")
        others = {process.pid for role in roles for process in run.list_processes(role)} | {run.main.pid}
        with Peak(lambda: pids) as peak, Peak(lambda: list(others)) as other:
            run.finish_undisturbed()
    return peak.mb, other.mb


class Peak:
    """A thread that samples the memory of some processes; ``mb`` is the highest sum, in MB.

    Args:
        pids: returns the processes.
        read_mb: returns the memory of a process; by default its PSS.
    """

    def __init__(self, pids: Callable[[], list[int]], read_mb: Callable[[int], float] | None = None) -> None:
        self.pids, self.read_mb = pids, read_mb or read_pss_mb
        self.mb = 0.0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    def watch(self) -> None:
        while not self.over.wait(EVERY_S):
            self.mb = max(self.mb, sum(map(self.read_mb, self.pids())))


def read_pss_mb(pid: int) -> float:
    """Return the PSS of a process in MB (10^6 bytes); 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6
