"""Elastic training as in ``horovod.torch.elastic``: states, their commits, and what continues from them."""

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from elastane.integrations.horovod.elastic.handover import Handover
from elastane.integrations.horovod.elastic.sampler import ElasticSampler
from elastane.integrations.horovod.elastic.state import ElasticState, ObjectState, TorchState, check_state
from elastane.integrations.horovod.world import HorovodInternalError, HostsUpdatedInterrupt
from elastane.run.scripts.worlds.environment import RUN_DIRECTORY

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TorchState",
    "run",
]

Result = TypeVar("Result")

STOPPED = 143
"""The exit code of a process that SIGTERM ended, as shells count it."""
ANNOUNCED_WITHIN_S = 10.0
"""A stop is announced within this time after the death of another process; otherwise the error is real."""


def make_elastic(function: Callable[..., Result]) -> Callable[..., Result]:
    """Make a training function elastic; its first argument is an `ElasticState`.

    The function begins with the newest commit of the processes before. If the number of processes changes,
    or one of them dies, this process hands its last commit over and ends; `elastane run --contract torchrun`
    starts the next ones.
    """

    @functools.wraps(function)
    def train(state: ElasticState, *args: Any, **kwargs: Any) -> Result:
        check_state(state)
        handover = Handover(find_directory())
        with handover.listen():
            if state.continue_from(handover):
                state.on_reset()
            try:
                state.sync()
                result = function(state, *args, **kwargs)
            except HostsUpdatedInterrupt:
                handover.write_latest()
                _end(STOPPED)
            except HorovodInternalError:
                handover.write_latest()
                if not handover.wait_for_stop(ANNOUNCED_WITHIN_S):
                    raise
                _end(STOPPED)
        handover.clear()
        return result

    return train


def find_directory() -> Path | None:
    """Return the directory for commits of this run; None: this process is not part of one."""
    root = os.environ.get(RUN_DIRECTORY, "")
    return Path(root) / "horovod" if root else None


def _end(code: int) -> NoReturn:
    """End this process without waiting for others, as the exit handlers of a process group would."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# Their names in Horovod.
State, run = ElasticState, make_elastic
