"""A process of an unmodified script, from the fork on: it becomes what ``python script.py`` would be."""

import os
import signal
import sys
from types import TracebackType

from elastane.run.agent.fork_server import ProcessStart
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunSpec
from elastane.run.worker.main_program import run_main_program
from elastane.run.worker.state.gpu_locks import VISIBLE
from elastane.run.worker.worker_log import open_worker_log
from elastane.run.worker.world_store import detach_process

OWN_FRAMES = 2
"""Frames of a traceback between the uncaught exception and the script."""


def prepare_process(run_dir: RunDir, start: ProcessStart, server: int, port: int) -> None:
    """Give a forked process its own session, signals, output and environment.

    Args:
        start: the request for this process.
        server: the process id of the fork server.
        port: of the store of its world.

    Raises:
        OSError: the log cannot be opened.
    """
    detach_process(server)
    # The agent announces every end by this signal; without a handler the script ends at once.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    log = os.open(run_dir.log(start.log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for target in (1, 2):
        os.dup2(log, target)
    os.close(log)
    sys.stdout, sys.stderr = open_worker_log(1), open_worker_log(2)
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc, assignment]
    os.environ.update(start.environment, MASTER_PORT=str(port))
    if (numpy := sys.modules.get("numpy")) is not None:
        # Python seeds `random` anew after a fork, but NumPy does not seed its own generator.
        numpy.random.seed()


def show_gpus(start: ProcessStart, processes: int) -> None:
    """Make the GPUs of its worker visible to this process; without a GPU nothing happens."""
    import torch

    from elastane.run.worker.state.gpu_locks import assign_gpu, list_gpu_names

    count = torch.cuda.device_count()
    if not count:
        return
    if processes == 1:
        assign_gpu(start.place)
        return
    os.environ[VISIBLE] = ",".join(
        share_gpus(list_gpu_names(count, os.environ.get(VISIBLE)), start.place, processes)
    )


def share_gpus(names: list[str], place: int, processes: int) -> list[str]:
    """Return the GPUs of one worker; if there are too few, workers share GPUs.

    Args:
        names: of all GPUs, at least one.
        place: of the worker among all workers.
        processes: of each worker, and so its number of GPUs.
    """
    first = place * processes
    return list(dict.fromkeys(names[(first + local) % len(names)] for local in range(processes)))


def run_program(spec: RunSpec) -> None:
    """Run the script as the main program of this process.

    Raises:
        SystemExit: it has failed, or has ended itself. Its own error is already printed.
    """
    try:
        run_main_program(spec)
    except SystemExit:
        raise
    # The script's own error, printed as Python prints it.
    except BaseException as error:  # noqa: BLE001
        # Some hooks, such as that of `torch.distributed`, read the traceback from the exception.
        error.__traceback__ = _skip_own_frames(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(1) from None


def _skip_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the script's first frame on; None: it has none, as after a syntax error."""
    inner = trace
    for _ in range(OWN_FRAMES):
        inner = None if inner is None else inner.tb_next
    return inner
