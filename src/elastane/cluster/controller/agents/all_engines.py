"""The engine of this machine and the fleet, as one engine for the loop."""

import asyncio
from collections.abc import Collection, Mapping, Sequence

from elastane.cluster.controller.agents.fleet import Fleet
from elastane.cluster.nouns.engine import JobEngine, Observation, ObservedNode, Order, StartAttempt


class AllEngines:
    """A `JobEngine` that passes each job on: to the local engine or to the fleet."""

    def __init__(self, local: JobEngine, fleet: Fleet) -> None:
        self._local = local
        self._fleet = fleet

    async def observe(self, jobs: Collection[str]) -> Mapping[str, Observation]:
        """Observe these jobs, and all others that have not been settled."""
        # The fleet finds out first which jobs are its own.
        elsewhere = await self._fleet.observe()
        here = await self._local.observe([job for job in jobs if job not in elsewhere])
        return {**here, **elsewhere}

    async def carry_out(self, orders: Sequence[Order]) -> Mapping[str, str]:
        """Carry out the orders as far as possible now."""
        # A plan may have given a job devices elsewhere since it was observed.
        away = self._fleet.list_jobs() if orders else ()
        starts = {order.job for order in orders if isinstance(order, StartAttempt) and order.job not in away}
        unclear = self._fleet.explain_unclear_jobs() if starts else {}
        # It could begin on the wrong machine.
        refused = {job: unclear[job] for job in starts & unclear.keys()}
        here = [order for order in orders if order.job not in away and order.job not in refused]
        elsewhere = [order for order in orders if order.job in away]
        found = await asyncio.gather(self._local.carry_out(here), self._fleet.carry_out(elsewhere))
        return {**found[0], **found[1], **refused}

    async def observe_nodes(self) -> Sequence[ObservedNode]:
        """Return the machines that are available now."""
        here, elsewhere = await asyncio.gather(self._local.observe_nodes(), self._fleet.observe_nodes())
        return (*here, *elsewhere)

    async def close(self) -> None:
        """Release what the engines hold; jobs continue."""
        await self._fleet.close()
        await self._local.close()
