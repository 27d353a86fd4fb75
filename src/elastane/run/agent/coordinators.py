"""The coordinator processes: one serves; a standby takes over as soon as that one dies."""

import asyncio
import time
from collections.abc import Callable

import msgspec

from elastane.run.agent import priority
from elastane.run.agent.processes import Child
from elastane.run.agent.restarts import Deaths
from elastane.run.machines.claims.terms import REFUSED_CODE, SUPERSEDED_CODE, TermOrder
from elastane.run.machines.succession.silence import TakeCharge

WITHIN_S = 10
GRACE_S = 2.0
STANDBY_AFTER_S = 1.0
"""How long a term has lasted when the next standby is started.

Its imports and the work of the new coordinator then delay different steps. A coordinator that dies within
this time has a successor that must import first: 0.2 s of processor time, in which training goes on.
"""


class Coordinators:
    """Runs the coordinators of a run's terms, one after the other.

    The standby has imported everything and opened nothing; it waits for its term. It runs at low priority if
    the usual priority can be restored. Otherwise the imports of a successor (0.2 s of processor time) would
    compete with steps.

    Args:
        start: starts a process that waits for its term on its standard input.
        changed: called whenever another process serves or stands by.
        first_term: number of the first term of this attempt; a resumed run has had earlier ones.
        attempt: how often the run had been resumed when this attempt began.

    Attributes:
        term: the last one that is known to have begun.
    """

    def __init__(
        self, start: Callable[[], Child], changed: Callable[[], None], first_term: int, attempt: int
    ) -> None:
        self._start = start
        self._changed = changed
        self._standby: Child | None = None
        self._serving: Child | None = None
        self.term = first_term - 1
        self._takeover: TakeCharge | None = None
        self._attempt = attempt

    @property
    def standby_pid(self) -> int | None:
        """Process id of the standby; None while there is none."""
        return None if self._standby is None else self._standby.pid

    @property
    def in_charge(self) -> bool:
        """Whether a coordinator of this agent serves."""
        return self._serving is not None

    @property
    def begins(self) -> bool:
        """Whether the coordinator of this agent still imports its modules; it reads its term after that."""
        return self._serving is not None and self._serving.has_unread_input

    def take_over(self, after: int, takeover: TakeCharge) -> None:
        """Let the next coordinator follow a silent one, which is killed if it is one of these.

        Args:
            after: the term of the silent coordinator.
            takeover: the decision, which the next coordinator learns.
        """
        self.term, self._takeover = max(self.term, after), takeover
        if self._serving is not None:
            self._serving.kill()

    async def keep(self) -> tuple[int, Deaths]:
        """Keep both running until coordinators die too often or may not be in charge, or until cancelled.

        Returns:
            Exit code of the last coordinator that served, and the times of the deaths.

        Raises:
            OSError: a process cannot be started.
        """
        code, deaths = 0, Deaths(WITHIN_S)
        try:
            while not deaths.too_many and code not in (REFUSED_CODE, SUPERSEDED_CODE):
                code = await self._serve(self._take_successor())
                deaths = deaths.add(time.monotonic(), code)
        finally:
            await self._end_standby()
        return code, deaths

    async def stand_by(self, until: asyncio.Event) -> None:
        """Keep a standby running while the coordinator of another machine serves, until the event."""
        standing_by = asyncio.create_task(self._keep_standby())
        try:
            await until.wait()
        except asyncio.CancelledError:
            standing_by.cancel()
            await asyncio.wait((standing_by,))
            await self._end_standby()
            raise
        standing_by.cancel()
        await asyncio.wait((standing_by,))

    async def _end_standby(self) -> None:
        if self._standby is not None:
            self._standby.kill()
            await self._standby.wait()
            self._standby.close()
            self._standby = None

    def _take_successor(self) -> Child:
        standby, self._standby = self._standby, None
        if standby is None:
            return self._start()
        if standby.process.poll() is not None:
            standby.close()
            return self._start()
        priority.restore(standby.pid)
        return standby

    async def _serve(self, child: Child) -> int:
        self.term += 1
        self._serving = child
        order = TermOrder(self.term, attempt=self._attempt)
        if (takeover := self._takeover) is not None:
            order = msgspec.structs.replace(
                order,
                silent_s=takeover.silent_s,
                answering=takeover.answering,
                has_left=takeover.has_left,
            )
        child.write_line(msgspec.json.encode(order))
        self._takeover = None
        standing_by = asyncio.create_task(self._keep_standby(STANDBY_AFTER_S))
        try:
            return await child.wait()
        except asyncio.CancelledError:
            await child.end(GRACE_S)
            raise
        finally:
            self._serving = None
            standing_by.cancel()
            await asyncio.wait((standing_by,))
            child.kill()
            child.close()

    async def _keep_standby(self, after_s: float = 0.0) -> None:
        """Keep a standby running; stop trying for this term once standbys have died too often."""
        await asyncio.sleep(after_s)
        deaths = Deaths(WITHIN_S)
        while not deaths.too_many:
            try:
                self._standby = child = self._start()
            except OSError:
                return
            priority.lower(child.pid)
            self._changed()
            code = await child.wait()
            self._standby = None
            child.close()
            self._changed()
            deaths = deaths.add(time.monotonic(), code)
