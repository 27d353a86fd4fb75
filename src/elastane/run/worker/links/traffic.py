"""The bytes that a worker exchanges with other machines in a step."""

from collections import deque
from collections.abc import Mapping
from statistics import median

from elastane.run.nouns.control import TrafficBytes
from elastane.run.nouns.membership import Generation, NodeName, SiteName, WorkerId
from elastane.run.worker.links.frames import StreamBytes

WINDOW_STEPS = 10
"""Measured before anything is reported, so that the state that a joiner copies does not count."""


class TrafficMeter:
    """Measures what crosses between this worker's machine and others, from one step to the next.

    Everything on a connection to another machine counts: gradients, values, votes and state.

    Args:
        streams: the bytes on the connection to each peer, including past ones.
    """

    def __init__(self, worker: WorkerId, streams: Mapping[WorkerId, StreamBytes]) -> None:
        self._worker, self._streams = worker, streams
        self._nodes: dict[WorkerId, NodeName] = {}
        self._sites: dict[WorkerId, SiteName] = {}
        self._generation = 0
        self._last: tuple[int, int, int] | None = None
        self._window: deque[tuple[int, int]] = deque(maxlen=WINDOW_STEPS)
        self._measured: tuple[int, TrafficBytes] | None = None

    def place(self, generation: Generation) -> None:
        """Learn the machines and the sites of the members of a generation."""
        peers = (*generation.members, *generation.leaving)
        self._nodes |= {peer.worker: peer.node for peer in peers}
        # A machine of several sites stands where the first of them is.
        self._sites |= {peer.worker: peer.sites[0] for peer in peers if peer.sites}

    def end_step(self, generation: int, step: int) -> None:
        """Measure the bytes since the last step; in the thread that handles the end of the step.

        Args:
            step: the number of steps committed so far; other rounds do not raise it.
        """
        sent, received = self._count()
        if generation != self._generation:
            self._generation, self._measured = generation, None
            self._window.clear()
        elif self._last is not None and step == self._last[0] + 1:
            self._window.append((sent - self._last[1], received - self._last[2]))
        elif self._last is not None and step == self._last[0]:
            return
        self._last = step, sent, received
        if len(self._window) == WINDOW_STEPS:
            each_sent, each_received = (round(median(some)) for some in zip(*self._window, strict=True))
            self._measured = generation, TrafficBytes(sent=each_sent, received=each_received)

    def _count(self) -> tuple[int, int]:
        own = self._nodes.get(self._worker)
        # A copy in one call, because the thread that drives the connections may add one.
        streams = list(self._streams.items())
        far = [stream for peer, stream in streams if self._nodes.get(peer, own) != own]
        return sum(stream.sent for stream in far), sum(stream.received for stream in far)

    def find_bytes(self, generation: int) -> TrafficBytes | None:
        """Return the bytes of a usual step of a generation; None: not measured yet. From any thread."""
        measured = self._measured
        return measured[1] if measured is not None and measured[0] == generation else None

    def count_crossings(self) -> dict[SiteName, int]:
        """Return the bytes sent to workers at each other site so far; they never shrink. From any thread."""
        own, found = self._sites.get(self._worker, ""), dict[SiteName, int]()
        for peer, stream in list(self._streams.items()) if own else ():
            site = self._sites.get(peer, own)
            if site != own:
                found[site] = found.get(site, 0) + stream.sent
        return found
