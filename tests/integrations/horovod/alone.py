"""Processes that stand for those of ``elastane run --contract torchrun``: the same variables, no agent."""

import os
import socket
import subprocess
from pathlib import Path

from tests.run.processes.stage import Stage
from tests.waiting import WAIT_S


def start_world(
    stage: Stage, script: str, size: int, run_dir: Path, *arguments: str
) -> list[subprocess.Popen]:
    """Start all ranks of a script."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return [
        subprocess.Popen(
            [*stage.warm_client, "python", script, *arguments],
            env=os.environ
            | {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "GROUP_RANK": str(rank),
                "GROUP_WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "ELASTANE_RUN_DIR": str(run_dir),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def wait_for_all(processes: list[subprocess.Popen]) -> list[tuple[int, str, str]]:
    """Return the code, output and errors of each rank."""
    outputs = [process.communicate(timeout=WAIT_S) for process in processes]
    return [(process.returncode, *texts) for process, texts in zip(processes, outputs, strict=True)]
