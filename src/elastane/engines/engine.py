"""What every engine can do."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from elastane.api.observations import Observation, ObservedNode
from elastane.api.orders import Order


class Engine(Protocol):
    """Observes jobs and carries out orders; between the two it remembers nothing that matters.

    A new one, of a controller that has just started, sees the same and goes on with the same jobs.
    """

    async def observe(self, jobs: Collection[str]) -> Mapping[str, Observation]:
        """What is there, of these jobs and of every other that has not been settled.

        Args:
            jobs: all that the controller believes to be unfinished; one that the engine has never heard of is
                observed as not there.
        """

    async def carry_out(self, orders: Sequence[Order]) -> Mapping[str, str]:
        """Do what is ordered, as far as that is possible now; whoever is not satisfied orders again.

        Args:
            orders: at most one per job.

        Returns:
            Why not, for each job whose order could not be carried out.
        """

    def nodes(self) -> Sequence[ObservedNode]:
        """The machines that are there now."""

    async def close(self) -> None:
        """Give back what the engine itself uses; jobs go on."""
