"""The contestants without elasticity: the plain loop and DDP."""

from pathlib import Path

from job import Job
from processes import Processes


def start(processes: Processes, job: Job, workers: int, script: str = "ddp", **environment: str) -> list[int]:
    """Start the plain loop (``workers`` 1) or DDP, and return the pids in the order of the ranks."""
    if workers == 1:
        return [processes.start(job.build_command(script), **environment).pid]
    store = (job.out / "store").absolute()
    job.out.mkdir(parents=True, exist_ok=True)
    return [
        processes.start(
            job.build_command(script),
            RANK=str(rank),
            WORLD_SIZE=str(workers),
            # A file, because a TCPStore listens on every address of the machine.
            STORE=f"file://{store}",
            GLOO_SOCKET_IFNAME="lo",
            **environment,
        ).pid
        for rank in range(workers)
    ]


def run(job: Job, workers: int, folder: Path, timeout_s: float = 600, script: str = "ddp") -> None:
    """Run the whole job to its end."""
    with Processes(folder) as processes:
        start(processes, job, workers, script)
        processes.finish(timeout_s)
