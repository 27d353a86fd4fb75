"""The parts of the simulation that a worker can reach, and the durations of its work."""

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from elastane.run.nouns.control import FromWorker
from elastane.run.nouns.membership import NodeName, WorkerId
from elastane.run.nouns.silence_limits import SilenceLimits
from elastane.run.nouns.spec import Pinned
from tests.run.simulator.checkers import Checker
from tests.run.simulator.clock import Clock
from tests.run.simulator.faulty_network import FaultyNetwork
from tests.run.simulator.process import WorkerProcess
from tests.run.simulator.reference_run import Shape
from tests.run.simulator.storage import SimStorage, StoredCheckpoint


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """The longest durations, in seconds.

    Args:
        start_s: the time from the start of the process to its first step.
        leaf_s: the compute time of a virtual rank.
        apply_s: the time of a step of the optimizer.
        user_s: the time of the script's own code between two rounds.
        measure_s: the time of norms and digests.
    """

    start_s: float = 0.4
    leaf_s: float = 0.02
    apply_s: float = 0.01
    user_s: float = 0.005
    measure_s: float = 0.003


class WorkerWorld(Protocol):
    """The parts of the simulation that a worker can reach."""

    clock: Clock
    shape: Shape
    pace: Pace
    pinned: Pinned
    silence: SilenceLimits
    peer_network: FaultyNetwork
    checker: Checker
    storage: SimStorage
    origin: StoredCheckpoint | None
    early_parts: bool

    @property
    def workers(self) -> Mapping[WorkerId, WorkerProcess]: ...

    def share_memory(self, worker: WorkerId, peer: WorkerId) -> bool: ...

    def find_node(self, worker: WorkerId) -> NodeName: ...

    def find_sites(self, worker: WorkerId) -> tuple[str, ...]: ...

    def draw_read_time(self) -> float:
        """Draw the time that a read of memory takes."""
        ...

    def send_to_coordinator(self, message: FromWorker) -> None: ...

    def handle_end(
        self, worker: WorkerId, code: int, *, hung: bool = False, silent: bool = False
    ) -> None: ...

    def trace(self, line: Callable[[], str]) -> None: ...

    def narrate(self, line: Callable[[], str]) -> None: ...
