"""The queue of a worker's tensor work on sums and state that it exchanges with peers.

The protocol issues work and learns of its end by an event; meanwhile the thread that handles messages goes
on, unless the work ends at once, as it does on the host (`AtOnce`). If peers read the memory of a GPU, the
kernels run on a stream beside the training, and a thread waits for their end (`OnStream`).
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import torch

from elastane.run.protocol import events
from elastane.run.worker.state.devices import SideStream

STUCK_S = 120.0
"""If no work has ended for this time, the worker hangs. The whole state of a large model takes seconds."""


class Work(msgspec.Struct, frozen=True):
    """One piece of work.

    Args:
        perform: does it, or queues its kernels, and returns the answer for the protocol.
        outputs: the tensors that it writes; nothing may read them before its end.
        inputs: the tensors of peers that it reads, in their memory or in their messages.
        private: no other worker reads what it writes, so its kernels may still run when it is answered.
    """

    perform: Callable[[], events.Event]
    outputs: Sequence[torch.Tensor] = ()
    inputs: Sequence[torch.Tensor] = ()
    private: bool = False


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


class OnStream(WorkQueue):
    """The queue of a GPU: kernels run on the stream of the thread that handles a round.

    Args:
        answer: receives the answers of work that has ended, in a thread of this queue.
        answer_now: receives the answers of private work before `issue` returns.
        fail: receives the error of a kernel, in a thread of this queue; the work is not answered.
        side_stream: the stream.
    """

    def __init__(
        self,
        answer: Callable[[events.Event], None],
        answer_now: Callable[[events.Event], None],
        fail: Callable[[BaseException], None],
        side_stream: SideStream,
    ) -> None:
        super().__init__(answer)
        self._answer_now, self._fail, self._side_stream = answer_now, fail, side_stream
        # One thread: the stream ends the work in the order in which it was issued.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="elastane-queue")

    def issue(self, work: Work) -> None:
        """Queue the kernels of a piece of work."""
        if work.private:
            self._answer_now(work.perform())
            return
        self.begin(work)
        with self._side_stream.use():
            answer = work.perform()
            ended = self._side_stream.record()
        self._thread.submit(self._end_after, ended, answer)

    def _end_after(self, ended: torch.cuda.Event | None, answer: events.Event) -> None:
        try:
            if ended is not None:
                ended.synchronize()
        except RuntimeError as error:
            self._fail(error)
            return
        self.end(answer)
