"""Loader processes: PyTorch's own, asked for what this worker will likely compute next.

They are guesses. What was guessed right is there when it is needed; what nobody foresaw is loaded by the
worker itself, at once; what a change of membership has made useless is dropped. So they change the time a
step takes and nothing else.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, TypeAlias

from torch.utils.data import DataLoader, Dataset, Sampler

from elastane.runtime.data.batch_messages import pack_batch, unpack_batch

Request: TypeAlias = tuple[int, int]
"""``(step, virtual rank)``."""

REHEARSED: Request = (1, 0)
PR_SET_PDEATHSIG = 1
LOST_ITS_WORKER = 71


class LoadFailure:
    """A loader's attempt ended with an exception; ``text`` is its traceback."""

    def __init__(self, text: str) -> None:
        self.text = text


class Loaders:
    """Processes that load ahead.

    They are forked here, so whatever the dataset is, they have it. Make them before this process has
    connections to others: see `elastane.runtime.links.inherited_descriptors`.

    Args:
        load: a request's answer; called in the loaders.
        foreseen: requests that are likely, the next one first; may be long.
        processes: how many.
        prefetch: requests under way in each.
        vital: this process dies with any of them, so that it is replaced.
    """

    def __init__(
        self,
        load: Callable[[Request], Any],
        foreseen: Callable[[], Iterable[Request]],
        processes: int,
        prefetch: int,
        *,
        vital: bool,
    ) -> None:
        self._foreseen = foreseen
        self._processes = processes
        # Each loader begins with a rehearsal, to have its files open; nothing else is foreseen yet.
        self._first = [REHEARSED] * processes
        self._under_way: deque[Request | None] = deque()
        self._arrived: dict[Request, Any] = {}
        siblings = set(multiprocessing.active_children())
        before = signal.getsignal(signal.SIGCHLD)
        self._answers: Iterator[Any] | None = iter(
            DataLoader(
                _Answers(load),
                batch_size=None,
                sampler=_Requests(self._next),
                num_workers=processes,
                prefetch_factor=prefetch,
                collate_fn=_as_it_is,
                worker_init_fn=_Init(os.getpid()),
                multiprocessing_context="fork",
            )
        )
        self._loaders = set(multiprocessing.active_children()) - siblings
        self._closing = False
        if vital and threading.current_thread() is threading.main_thread():
            # PyTorch would raise in the middle of the script, which ends the run. A death only ends a worker.
            self._before = before
            signal.signal(signal.SIGCHLD, self._die_with_them)

    def foresee(self) -> None:
        """Guesses may have changed: ask idle loaders, drop what is useless."""
        for _ in range(len(self._under_way)):
            if self._under_way[0] is not None:
                break
            self._receive()
        if self._arrived:
            useful = self._useful()
            self._arrived = {request: kept for request, kept in self._arrived.items() if request in useful}

    def take(self, request: Request) -> Any | None:  # noqa: ANN401 - whatever `load` returns
        """What was loaded ahead; None: nothing was, or in vain."""
        while request not in self._arrived and request in self._under_way:
            self._receive()
        answer = self._arrived.pop(request, None)
        if isinstance(answer, LoadFailure):
            # Loaded once more by the worker itself, it fails with the user's own traceback.
            sys.stderr.write(f"a loader process failed at step {request[0]}, virtual rank {request[1]}:\n")
            sys.stderr.write(answer.text)
            return None
        return answer

    def catch_up(self) -> None:
        """After a guess that was missing: make room for better ones, without waiting for long.

        While this process loaded one batch, each loader has had time for one too.
        """
        useful = self._useful()
        for _ in range(self._processes):
            if not self._under_way or self._under_way[0] in useful:
                return
            self._receive()

    def close(self) -> None:
        self._closing = True
        self._answers = None

    def _next(self) -> Request | None:
        """The next request to make, None for want of a guess; called by the iterator of answers."""
        taken = {*self._under_way, *self._arrived}
        guess = self._first.pop() if self._first else None
        if guess is None:
            guess = next((request for request in self._foreseen() if request not in taken), None)
        self._under_way.append(guess)
        return guess

    def _receive(self) -> None:
        assert self._answers is not None, "asked for after the end"  # noqa: S101
        answer = next(self._answers)
        request = self._under_way.popleft()
        if request is not None:
            self._arrived[request] = unpack_batch(answer) if isinstance(answer, bytes) else answer

    def _useful(self) -> set[Request]:
        """As many of the likeliest requests as can be under way or have arrived."""
        limit = len(self._under_way) + len(self._arrived)
        return {request for request, _ in zip(self._foreseen(), range(limit), strict=False)}

    def _die_with_them(self, _number: int, _frame: FrameType | None) -> None:
        if not self._closing and any(not loader.is_alive() for loader in self._loaders):
            sys.stderr.write("a loader process was killed; this worker ends too, to be replaced\n")
            sys.stderr.flush()
            # Not an exit code, which would be taken for the script's: a death, and another is started.
            os.kill(os.getpid(), signal.SIGKILL)


class _Answers(Dataset[Any]):
    """Lives in the loaders: requests in, batches out."""

    def __init__(self, load: Callable[[Request], Any]) -> None:
        self._load = load

    def __getitem__(self, request: Request | None) -> Any:  # noqa: ANN401 - whatever `load` returns
        if request is None:
            return None
        try:
            return pack_batch(self._load(request))
        except Exception:  # noqa: BLE001 - told to the worker, which tries again and meets it
            return LoadFailure(traceback.format_exc())


class _Requests(Sampler[Request | None]):
    """Endless: each request is made up when a loader has room for it."""

    def __init__(self, following: Callable[[], Request | None]) -> None:
        self._following = following

    def __iter__(self) -> Iterator[Request | None]:
        while True:
            yield self._following()


class _Init:
    """First of all in a loader: it must not outlive its worker."""

    def __init__(self, worker: int) -> None:
        self._worker = worker

    def __call__(self, _loader: int) -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._worker:
            os._exit(LOST_ITS_WORKER)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _as_it_is(batch: Any) -> Any:  # noqa: ANN401 - whatever `load` returns
    return batch
