"""The trackers of a run on a machine that joined it: fed once the machine has been in charge.

The first machine feeds them from the start. After it has left or died, another one is in charge. One process
at a time feeds them, because it holds a lock in the shared run directory; the next one passes on what the
trackers lack.
"""

import asyncio
from collections.abc import Callable
from typing import Self

from elastane.run.attempts.tracking import TrackerKeeper
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.trackers import Tracker

LOOK_S = 0.5


class StandbyTrackers:
    """Keeps the process of the trackers running from the time when this machine is in charge.

    Args:
        chosen: the trackers of its spec.
        say: takes lines for the user, from another thread.
    """

    def __init__(self, run_dir: RunDir, chosen: tuple[Tracker, ...], say: Callable[[str], None]) -> None:
        self._run_dir, self._chosen, self._say = run_dir, chosen, say
        self._keeper: TrackerKeeper | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._keeper is not None:
            self._keeper.__exit__(*error)

    async def follow(self, is_in_charge: Callable[[], bool]) -> None:
        """Wait until this machine is in charge, then keep the process until the context ends."""
        while not is_in_charge():  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(LOOK_S)
        self.start()

    def start(self) -> None:
        """Start the process, unless it runs already."""
        if self._keeper is None:
            self._keeper = TrackerKeeper(self._run_dir, self._chosen, self._say).__enter__()

    def finish(self, grace_s: float) -> None:
        """Wait until the trackers have everything, at most this many seconds, if this machine feeds them."""
        if self._keeper is not None:
            self._keeper.finish(grace_s)
