"""What every part of a simulated worker can reach, and how long things take it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from elastane.api.control import FromWorker
from elastane.api.membership import WorkerId
from elastane.api.spec import Pinned
from tests.simulator.checkers import Checker
from tests.simulator.clock import Clock
from tests.simulator.network import Streams
from tests.simulator.symbols import Shape
from tests.simulator.vault import Kept, Vault

if TYPE_CHECKING:
    from tests.simulator.worker import SimWorker


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Longest durations, in seconds.

    Args:
        start_s: from the start of the process to its first step.
        leaf_s: of a virtual rank.
        apply_s: of the optimizer.
        user_s: of the script's own code between two rounds.
        measure_s: of norms and digests.
    """

    start_s: float = 0.4
    leaf_s: float = 0.02
    apply_s: float = 0.01
    user_s: float = 0.005
    measure_s: float = 0.003


class World(Protocol):
    """What a worker can reach."""

    clock: Clock
    shape: Shape
    pace: Pace
    pinned: Pinned
    shared: bool
    streams: Streams
    checker: Checker
    vault: Vault
    origin: Kept | None
    workers: dict[WorkerId, "SimWorker"]

    def to_coordinator(self, message: FromWorker) -> None: ...

    def ended(self, worker: WorkerId, code: int, *, hung: bool = False) -> None: ...

    def tell(self, line: Callable[[], str]) -> None: ...

    def narrate(self, line: Callable[[], str]) -> None: ...
