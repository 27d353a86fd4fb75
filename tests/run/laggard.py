"""A device that lags: its work ends late and in any order, and what it writes is unreadable until then.

It stands for a GPU where there is none. `install` gives it to all workers that this process forks; the
variable `LAGGARD` does so in runs with workers of the warm process, and those of `find_variables` in others.
"""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random

import torch

from elastane.common.errors import RunFailed
from elastane.run.protocol import actions, events
from elastane.run.worker.reactor import Reactor
from elastane.run.worker.work_queue import Work, WorkQueue

LAGGARD = "ELASTANE_TEST_LAGGARD"
"""The variable with the seed of the delays."""
SLOWEST_S = 0.02
FAILED = 70


class LaggardQueue(WorkQueue):
    """A queue that does its work in a thread of its own.

    Args:
        answer: see `WorkQueue`.
        seed: of the delays and of the order.
        slowest_s: the longest delay before each piece of work.
    """

    def __init__(
        self, answer: Callable[[events.Event], None], seed: int, slowest_s: float = SLOWEST_S
    ) -> None:
        super().__init__(answer)
        self._chance, self._slowest_s = Random(seed), slowest_s
        self._waiting: list[tuple[Work, list[torch.Tensor]]] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="elastane-laggard", daemon=True).start()

    def issue(self, work: Work) -> None:
        self.begin(work)
        with self._changed:
            busy = {output.data_ptr() for other, _ in self._waiting for output in other.outputs}
            if not busy.isdisjoint(output.data_ptr() for output in work.outputs):
                raise AssertionError(f"two pieces of work write to one place: {work}")
            contents = [output.clone() for output in work.outputs]
            for output in work.outputs:
                output.fill_(float("nan") if output.is_floating_point() else torch.iinfo(output.dtype).max)
            self._waiting.append((work, contents))
            self._changed.notify()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting)
                time.sleep(self._chance.random() * self._slowest_s)  # not a wait: the device lags
                with self._changed:
                    work, contents = self._waiting[self._chance.randrange(len(self._waiting))]
                # The work may add to what was there.
                for output, content in zip(work.outputs, contents, strict=True):
                    output.copy_(content)
                answer = work.perform()
                with self._changed:
                    self._waiting = [waiting for waiting in self._waiting if waiting[0] is not work]
                self.end(answer)
        except BaseException:  # noqa: BLE001 - a device that fails ends its worker
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(FAILED)


def install(seed: int) -> None:
    """Let the workers of this process, and of those that it forks, use such a device."""
    make, act = Reactor.__init__, Reactor._act

    def make_with_laggard(reactor: Reactor, *parts: object, **options: object) -> None:
        make(reactor, *parts, **options)
        # The processes of a worker lag differently: an event counts when the last of them has posted it.
        reactor.queue = LaggardQueue(reactor.post, seed + int(os.environ.get("RANK", "0")))

    def act_with_laggard(reactor: Reactor, action: actions.Action) -> None:
        if not isinstance(reactor.queue, LaggardQueue):
            # A worker that ended with another error would be replaced again and again.
            raise RunFailed(
                f"{type(reactor).__name__} has a queue of its own",
                means="this test would not have a device that lags",
                do="let `Reactor._choose_queue` choose it",
            )
        act(reactor, action)

    Reactor.__init__, Reactor._act = make_with_laggard, act_with_laggard


def find_variables(seed: int) -> dict[str, str]:
    """Return the environment of a command with cold workers that use such a device."""
    here = Path(__file__).parent
    paths = [str(here / "lagging"), str(here.parents[1]), os.environ.get("PYTHONPATH", "")]
    return {LAGGARD: str(seed), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
