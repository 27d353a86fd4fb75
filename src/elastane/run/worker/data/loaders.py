"""Loader processes, which are PyTorch's own and load the batches that this worker will probably compute next.

The requests are predictions. A correctly predicted batch is ready when the worker needs it. The worker itself
loads any other batch at once, and drops batches that a change of membership has made useless. So loaders only
change the duration of a step.
"""

import ctypes
import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.reduction import ForkingPickler
from types import FrameType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from elastane.run.nouns.notices import withstand_notices

Request: TypeAlias = tuple[int, int]
"""A request for a batch: ``(step, virtual rank)``."""

PR_SET_PDEATHSIG = 1
LOST_ITS_WORKER = 71
SMALL_BYTES = 1 << 16


class LoadFailure:
    """The failure of a loader to load a batch; ``text`` is the traceback."""

    def __init__(self, text: str) -> None:
        self.text = text


class Loaders:
    """The processes that load ahead.

    The constructor forks them, so they have this process's dataset, of any kind. Construct it before this
    process connects to others: see `elastane.run.worker.links.inherited_descriptors`.

    Args:
        load: loads the batch of a request; called in the loaders.
        predict: returns probable requests, the next one first; may be a long iterable.
        processes: the number of loaders.
        prefetch: the number of open requests of each loader.
        vital: this process dies if a loader dies, so that the run replaces it.
        rehearsed: the request with which each loader begins, and which opens its files.
    """

    def __init__(
        self,
        load: Callable[[Request], Any],
        predict: Callable[[], Iterable[Request]],
        processes: int,
        prefetch: int,
        *,
        vital: bool,
        rehearsed: Request = (1, 0),
    ) -> None:
        self._predict = predict
        self._processes = processes
        # Other requests are not predicted yet.
        self._rehearsals = [rehearsed] * processes
        self._open_requests: deque[Request | None] = deque()
        self._loaded: dict[Request, Any] = {}
        siblings = set(multiprocessing.active_children())
        self._answers: Iterator[Any] | None = iter(
            DataLoader(
                _BatchDataset(load),
                batch_size=None,
                sampler=_RequestSampler(self._choose_next),
                num_workers=processes,
                prefetch_factor=prefetch,
                collate_fn=_return_batch,
                worker_init_fn=_LoaderInit(os.getpid()),
                multiprocessing_context="fork",
            )
        )
        self._loaders = set(multiprocessing.active_children()) - siblings
        for loader in self._loaders:
            # Python ends daemons by SIGTERM, which a loader withstands.
            process: Any = loader._popen  # type: ignore[attr-defined]
            process.terminate = process.kill
        self._closing = False
        if vital and threading.current_thread() is threading.main_thread():
            # PyTorch's handler raises inside the script, which ends the run; a death ends only this worker.
            signal.signal(signal.SIGCHLD, self._handle_dead_loader)

    def refresh(self) -> None:
        """Update the predictions: send requests to idle loaders, and drop useless batches."""
        for _ in range(len(self._open_requests)):
            if self._open_requests[0] is not None:
                break
            self._receive()
        if self._loaded:
            useful = self._find_useful()
            self._loaded = {request: batch for request, batch in self._loaded.items() if request in useful}

    def take(self, request: Request) -> Any | None:
        """Return a batch that was loaded ahead; None: it was not loaded, or a loader failed."""
        while request not in self._loaded and request in self._open_requests:
            self._receive()
        answer = self._loaded.pop(request, None)
        if isinstance(answer, LoadFailure):
            # The worker itself loads the batch again, and fails with the user's own traceback.
            sys.stderr.write(f"a loader process failed at step {request[0]}, virtual rank {request[1]}:\n")
            sys.stderr.write(answer.text)
            return None
        return answer

    def catch_up(self) -> None:
        """Make room for better requests after a missing one, without a long wait.

        While this process loaded one batch, each loader has had time to load one too.
        """
        useful = self._find_useful()
        for _ in range(self._processes):
            if not self._open_requests or self._open_requests[0] in useful:
                return
            self._receive()

    def close(self) -> None:
        """End the loader processes."""
        self._closing = True
        self._answers = None

    def _choose_next(self) -> Request | None:
        """Return the next request, None if nothing can be predicted; the iterator of answers calls this."""
        pending = {*self._open_requests, *self._loaded}
        request = self._rehearsals.pop() if self._rehearsals else None
        if request is None:
            request = next((guess for guess in self._predict() if guess not in pending), None)
        self._open_requests.append(request)
        return request

    def _receive(self) -> None:
        assert self._answers is not None, "asked for after the end"
        answer = next(self._answers)
        request = self._open_requests.popleft()
        if request is not None:
            self._loaded[request] = unpack_batch(answer) if isinstance(answer, bytes) else answer

    def _find_useful(self) -> set[Request]:
        """Return the most probable requests, as many as are open or have arrived."""
        limit = len(self._open_requests) + len(self._loaded)
        return {request for request, _ in zip(self._predict(), range(limit), strict=False)}

    def _handle_dead_loader(self, _number: int, _frame: FrameType | None) -> None:
        if not self._closing and any(not loader.is_alive() for loader in self._loaders):
            sys.stderr.write("a loader process was killed, so this worker ends; another one replaces it\n")
            sys.stderr.flush()
            # Use a signal: the run would attribute an exit code to the script.
            os.kill(os.getpid(), signal.SIGKILL)


class _BatchDataset(Dataset[Any]):
    """The dataset of the loaders: its indices are requests, its samples are batches."""

    def __init__(self, load: Callable[[Request], Any]) -> None:
        self._load = load

    def __getitem__(self, request: Request | None) -> Any:
        if request is None:
            return None
        try:
            return pack_batch(self._load(request))
        except Exception:  # noqa: BLE001 - the worker loads the batch again, and raises the error
            return LoadFailure(traceback.format_exc())


class _RequestSampler(Sampler[Request | None]):
    """An endless series of requests, each made when a loader has room for it."""

    def __init__(self, following: Callable[[], Request | None]) -> None:
        self._following = following

    def __iter__(self) -> Iterator[Request | None]:
        while True:
            yield self._following()


class _LoaderInit:
    """The first function of a loader, which makes the loader die with its worker."""

    def __init__(self, worker: int) -> None:
        self._worker = worker

    def __call__(self, _loader: int) -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._worker:
            os._exit(LOST_ITS_WORKER)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # The last steps of a run need it, too.
        withstand_notices()


def _return_batch(batch: Any) -> Any:
    return batch


# -- messages that carry a batch from a loader to its worker; large tensors travel in shared memory ------
#
# PyTorch puts each tensor into its own shared memory and sends a descriptor through a new connection. For
# a batch of tokens that takes many times longer than a copy in the message.


class _Pickler(ForkingPickler):
    def reducer_override(self, value: Any) -> Any:
        # Only exact tensors: a subclass may carry more than its values.
        if type(value) is not torch.Tensor or not _is_plain(value) or value.nbytes > SMALL_BYTES:
            return NotImplemented
        try:
            return torch.from_numpy, (np.array(value.numpy()),)
        except TypeError:  # a type that NumPy lacks
            return NotImplemented


def _is_plain(tensor: torch.Tensor) -> bool:
    return not tensor.requires_grad and tensor.device.type == "cpu" and tensor.layout == torch.strided


def pack_batch(batch: Any) -> bytes:
    """Return the message with a batch; it can be unpacked only once."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(batch)
    return buffer.getvalue()


def unpack_batch(message: bytes) -> Any:
    """Return the batch in a message of this process's own loader."""
    return pickle.loads(message)  # noqa: S301 - from a child
