"""The interface of all engines."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from elastane.cluster.nouns.observations import Observation, ObservedNode
from elastane.cluster.nouns.orders import Order


class Engine(Protocol):
    """An engine observes jobs and carries out orders. It keeps no state that it could not observe again.

    The engine of a restarted controller therefore sees the same jobs and continues with them.
    """

    async def observe(self, jobs: Collection[str]) -> Mapping[str, Observation]:
        """Observe these jobs, and all others that have not been settled.

        Args:
            jobs: all jobs that are unfinished for the controller; a job that the engine does not know is
                reported as absent.
        """

    async def carry_out(self, orders: Sequence[Order]) -> Mapping[str, str]:
        """Carry out the orders as far as possible now; the controller repeats an order that had no effect.

        Args:
            orders: at most one per job.

        Returns:
            The reason for each failed order, by job.
        """

    def observe_nodes(self) -> Sequence[ObservedNode]:
        """Return the machines that are available now."""

    async def close(self) -> None:
        """Release the engine's own resources; jobs continue."""
