"""Streams and events that stand for those of a GPU: they record which thread waits on the host.

The kernels are those of the CPU, so everything is complete at once; an event can be made late.
"""

import threading
from contextlib import nullcontext

from elastane.run.worker.state import devices, slot_memory
from tests.waiting import WAIT_S


class Streams:
    """Replaces the streams of one test.

    Attributes:
        waits: the name of the thread of each wait on the host.
        arrival: events are complete when it is set.
        orders: how often one stream had to wait for another one.
    """

    def __init__(self, monkeypatch) -> None:
        self.waits: list[str] = []
        self.orders = 0
        self.arrival = threading.Event()
        self.arrival.set()
        current = _Stream(self)
        for module in (devices, slot_memory):
            monkeypatch.setattr(module, "open_cuda_stream", lambda _device: _Stream(self))
            monkeypatch.setattr(module, "get_cuda_stream", lambda _device: current)
        monkeypatch.setattr("torch.cuda.Event", lambda blocking: _Event(self))
        monkeypatch.setattr("torch.cuda.stream", lambda _stream: nullcontext())
        monkeypatch.setattr("torch.cuda.synchronize", lambda _device: self.wait())

    def wait(self) -> None:
        self.waits.append(threading.current_thread().name)
        assert self.arrival.wait(WAIT_S), "the test lets every event arrive"


class _Event:
    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def record(self, _stream) -> None:
        pass

    def synchronize(self) -> None:
        self._streams.wait()


class _Stream:
    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def record_event(self) -> _Event:
        return _Event(self._streams)

    def wait_event(self, _event) -> None:
        pass

    def wait_stream(self, _stream) -> None:
        self._streams.orders += 1

    def synchronize(self) -> None:
        self._streams.wait()
