"""The queue of a worker's tensor work on sums and state that it exchanges with peers.

The protocol issues work and learns of its end by an event; meanwhile the thread that handles messages goes
on, unless the work ends at once, as it does on the host (`AtOnce`). On a GPU the work waits for its kernels
on the side stream of that thread, so it ends at once, too.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import msgspec
import torch

from elastane.run.protocol import events

STUCK_S = 120.0
"""If no work has ended for this time, the worker hangs. The whole state of a large model takes seconds."""


class Work(msgspec.Struct, frozen=True):
    """One piece of work.

    Args:
        perform: does it, and returns the answer for the protocol.
        outputs: the tensors that it writes; nothing may read them before its end.
        inputs: the tensors of peers that it reads, in their memory or in their messages.
    """

    perform: Callable[[], events.Event]
    outputs: Sequence[torch.Tensor] = ()
    inputs: Sequence[torch.Tensor] = ()


class WorkQueue(ABC):
    """A queue of work; answers may come from any thread and in any order.

    Args:
        answer: receives the answer of each work that has ended.

    Attributes:
        bytes_read: the bytes that all work has read from peers.
    """

    def __init__(self, answer: Callable[[events.Event], None]) -> None:
        self._answer = answer
        # Two counts, because two threads may count.
        self._begun = self._ended = 0
        self._moved_s = 0.0
        self.bytes_read = 0

    @abstractmethod
    def issue(self, work: Work) -> None:
        """Begin a piece of work, now or later."""

    def begin(self, work: Work) -> None:
        """Record that a piece of work is under way."""
        if self._begun == self._ended:
            self._moved_s = time.monotonic()
        self._begun += 1
        self.bytes_read += sum(tensor.nbytes for tensor in work.inputs)

    def end(self, answer: events.Event) -> None:
        """Record the end of a piece of work, and pass its answer on."""
        self._ended += 1
        self._moved_s = time.monotonic()
        self._answer(answer)

    def is_stuck(self) -> bool:
        """Return whether work is under way, but none has ended for `STUCK_S`; from any thread."""
        return self._begun > self._ended and time.monotonic() - self._moved_s > STUCK_S


class AtOnce(WorkQueue):
    """The queue that ends all work before `issue` returns."""

    def issue(self, work: Work) -> None:
        """Do a piece of work."""
        self.begin(work)
        self.end(work.perform())
