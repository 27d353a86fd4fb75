"""The engine of ``elastane run``: its only job is the run in this process."""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from elastane.cluster.engines.run_line import RunLine, count_workers
from elastane.cluster.nouns.engine import Observation, ObservedNode, Order, ResizeJob, StartAttempt
from elastane.run.nouns.attempts import AttemptOutcome
from elastane.run.nouns.control import Answer
from elastane.run.nouns.rundir import RunDir

ATTEMPT = 1
"""The only attempt of each job: the next attempt of the run is another job."""

ENDED_BEFORE = AttemptOutcome(code=1, why="`elastane run` has ended")
"""The final outcome of earlier jobs: `elastane run --resume` continues the run as another job."""


class ForegroundEngine:
    """An `elastane.cluster.nouns.engine.JobEngine` that only resizes: its job begins and ends by itself."""

    def __init__(self, job: str, run_dir: RunDir) -> None:
        self._job = job
        self._line = RunLine(run_dir)

    async def observe(self, jobs: Collection[str]) -> Mapping[str, Observation]:
        """Observe the run through its coordinator; all other jobs are earlier attempts, which have ended."""
        earlier = {name: Observation(job=name, attempt=ATTEMPT, outcome=ENDED_BEFORE) for name in jobs}
        return earlier | {self._job: self._build_observation(await self._line.ask_status())}

    def _build_observation(self, answer: Answer | None) -> Observation:
        seen = self._line.observe(self._job, count_workers(answer))
        return msgspec.structs.replace(
            seen,
            attempt=ATTEMPT,
            present=True,
            agent=True,
            fixed=seen.fixed or (answer is not None and answer.by_hand),
        )

    async def carry_out(self, orders: Sequence[Order]) -> Mapping[str, str]:
        """Carry out orders for the run; see `elastane.cluster.nouns.engine.JobEngine.carry_out`."""
        refusals = {order.job: await self._carry_out(order) for order in orders if order.job == self._job}
        return {job: why for job, why in refusals.items() if why}

    async def _carry_out(self, order: Order) -> str:
        match order:
            case StartAttempt():
                return ""
            case ResizeJob():
                # The coordinator decides: a user may have set the size since the run was observed.
                return await self._line.carry_out(order, unless_by_hand=True)
            case _:
                return "the run was started in a terminal, and only that terminal ends it"

    async def observe_nodes(self) -> Sequence[ObservedNode]:
        """Return no node: the pool is declared with the devices that this process sees."""
        return ()

    async def close(self) -> None:
        """Close the connection; the run continues."""
        await self._line.close()
