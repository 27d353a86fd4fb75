"""The speed of a job at each size: as measured where it was measured, predicted elsewhere.

A step has a part that workers divide among them and a part that they do not, so the time of a sample at n
workers is ``a / n + b``. The two numbers are fitted to two neighbouring measurements at a time, so the model
passes through all of them: a size that is slower than a smaller one stays so, and another node can have its
price. (Optimus, EuroSys 2018, and Pollux, OSDI 2021, fit one curve to all sizes.)
"""

import math
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeAlias

Speeds: TypeAlias = tuple[tuple[int, float], ...]
"""``(workers, samples per second)``."""

UNDIVIDED = 0.02
"""The undivided part of a step at one worker, where nothing else is known: 8 workers are then 7 times as fast
as one, 64 are 28 times as fast."""

CROSSING = 0.7
"""The speed on several nodes as a part of what it would be on one, before any such size was measured: the
network between nodes is slower."""

ONE_NODE = 10**9
"""A node for any number of workers."""

REACH = 2
"""Beyond one node, a job grows to at most this many times the largest size that was measured."""


class _Segment(NamedTuple):
    """``speed(n) = n / (a + b * n)`` for sizes up to ``end``, from the segment before."""

    end: float
    a: float
    b: float


class SpeedModel:
    """How fast a job is at each size, in samples per second if anything was measured, else relative.

    Args:
        speeds: ``(workers, samples per second)`` as measured, positive, by ascending size.
        node_workers: workers that fit on one node.

    Attributes:
        sizes: the measured sizes, ascending.
        largest: the largest of them; 0: nothing was measured.
        reach: the largest size to which the job may grow before more was measured.
    """

    __slots__ = ("_alone", "_ends", "_segments", "_speeds", "largest", "reach", "sizes")

    def __init__(self, speeds: Speeds, node_workers: int) -> None:
        # The measured speeds, and each predicted one from the first time on that it was asked for.
        self._speeds: dict[float, float] = dict(speeds)
        self.sizes = tuple(size for size, _ in speeds)
        self._segments = _build_segments(speeds, node_workers)
        self._ends = [segment.end for segment in self._segments]
        self._alone = self.compute_speed(1)
        self.largest = self.sizes[-1] if speeds else 0
        if not speeds:
            # Growth beyond a node is worth its price only if the network is fast enough.
            self.reach = node_workers
        else:
            largest, speed = speeds[-1]
            is_slower = any(speed <= other for _, other in speeds[:-1])
            self.reach = largest if is_slower else max(node_workers, REACH * largest)

    def compute_speed(self, workers: float) -> float:
        speed = self._speeds.get(workers)
        if speed is None:
            _, a, b = self._segments[bisect_left(self._ends, workers)]
            speed = self._speeds[workers] = workers / (a + b * workers)
        return speed

    def compute_worker_s(self, workers: int) -> float:
        """Return the worker-seconds of one sample."""
        return workers / self.compute_speed(workers)

    def compute_gain(self, workers: int, more: int) -> float:
        """Return ``log(speed(more) / speed(workers))``, which is the same for jobs of any absolute speed."""
        return math.log(self.compute_speed(more) / self.compute_speed(workers))

    def compute_efficiency(self, workers: int, more: int) -> float:
        """Return the speed that each additional worker adds, as a part of the speed of one worker alone."""
        added = self.compute_speed(more) - self.compute_speed(workers)
        return added / (more - workers) / self._alone

    def compute_needed_workers(self, speed: float) -> float:
        """Return the fewest workers for a speed; infinite if no number of them reaches it."""
        begin = 0.0
        for end, a, b in self._segments:
            left = 1.0 - speed * b
            needed = max(begin, speed * a / left) if left > 0 and a > 0 else math.inf
            if needed <= end:
                return needed
            begin = end
        return math.inf


@lru_cache(maxsize=2**17)
def build_speed_model(
    speeds: Speeds, node_workers: int, weights: tuple[float, ...] = (), prior: Speeds = ()
) -> SpeedModel:
    """Return the model of measured speeds.

    The result is cached, because few jobs are measured anew from one plan to the next.

    Args:
        speeds: ``(workers, samples per second)``, in any order; pairs that are not positive are ignored.
        node_workers: workers that fit on one node.
        weights: of the speeds, from 0 to 1; empty: all are 1. A speed of a lower weight lies between the
            measured one and what the speeds of higher weights predict.
        prior: speeds of another job with the same program. They predict how the speed grows with the size.
    """
    return SpeedModel(_combine_speeds(speeds, node_workers, weights, prior), node_workers)


def _combine_speeds(speeds: Speeds, node_workers: int, weights: tuple[float, ...], prior: Speeds) -> Speeds:
    """Return the known speeds of a job, by ascending size; see `build_speed_model`."""
    known = {size: speed for size, speed in prior if size > 0 and speed > 0}
    paired = ((size, speed, weight) for (size, speed), weight in _pair(speeds, weights))
    measured = sorted(
        ((weight, size in known, size, speed) for size, speed, weight in paired if size > 0 and speed > 0),
        reverse=True,
    )
    if known and measured:
        # Another job may have had other samples, so only the ratios of its speeds count.
        _, _, size, speed = measured[0]
        scale = speed / SpeedModel(tuple(sorted(known.items())), node_workers).compute_speed(size)
        known = {other: scale * one for other, one in known.items()}
    for i, (weight, _, size, speed) in enumerate(measured):
        known[size] = speed
        if i and weight < 1:
            others = tuple(sorted(pair for pair in known.items() if pair[0] != size))
            predicted = SpeedModel(others, node_workers).compute_speed(size)
            known[size] = speed**weight * predicted ** (1 - weight)
    return tuple(sorted(known.items()))


def pass_on_speeds(speeds: Speeds, weights: tuple[float, ...], prior: Speeds) -> Speeds:
    """Return what a job has shown of its program, as the prior of a later one; see `build_speed_model`."""
    return _combine_speeds(speeds, ONE_NODE, weights, prior)


def select_comparable_speeds(speeds: Speeds, weights: tuple[float, ...]) -> tuple[Speeds, tuple[float, ...]]:
    """Return the speeds that a plan may compare, and their weights.

    A size that was measured only for a short time may be noise. If there is no other size, the largest one
    still counts: it shows the speed of the job, but not the worth of more workers.

    Args:
        speeds: ``(workers, samples per second)``.
        weights: of the speeds; 0: it was measured for a short time. Empty: all are 1.
    """
    found = [pair for pair in _pair(speeds, weights) if pair[1] > 0]
    return (tuple(speed for speed, _ in found), tuple(w for _, w in found)) if found else (speeds[-1:], ())


def _pair(speeds: Speeds, weights: tuple[float, ...]) -> Iterator[tuple[tuple[int, float], float]]:
    return zip(speeds, weights if len(weights) == len(speeds) else (1.0,) * len(speeds), strict=True)


def _build_segments(speeds: Speeds, node_workers: int) -> list[_Segment]:
    first, last = (speeds[0], speeds[-1]) if speeds else ((1, 1.0), (1, 1.0))
    segments = [_Segment(first[0], *_scale_default(first))]
    segments += [_join(one, other) for one, other in pairwise(speeds)]
    a, b = _extend(speeds[-2:], node_workers) if len(speeds) > 1 else _scale_default(last)
    if last[0] <= node_workers:
        return [*segments, *_cross_nodes(a, b, node_workers)]
    return [*segments, _Segment(math.inf, a, b)]


def _cross_nodes(a: float, b: float, node_workers: int) -> list[_Segment]:
    """Return the segments beyond the largest measured size, where nothing was measured on several nodes.

    The second node brings the price of the network little by little, so that no worker of a job that is
    already on several nodes seems to slow it down.
    """
    on_one = _Segment(node_workers, a, b)
    one = (node_workers, node_workers / (a + b * node_workers))
    two = (2 * node_workers, CROSSING * 2 * node_workers / (a + b * 2 * node_workers))
    if two[1] <= one[1]:
        return [on_one, _Segment(math.inf, 0.0, 1.0 / one[1])]
    return [on_one, _join(one, two), _Segment(math.inf, a / CROSSING, b / CROSSING)]


def _scale_default(point: tuple[int, float]) -> tuple[float, float]:
    """Return the usual a and b, scaled so that a measured size has its speed."""
    size, speed = point
    unit_s = 1.0 / (speed * ((1.0 - UNDIVIDED) / size + UNDIVIDED))
    return unit_s * (1.0 - UNDIVIDED), unit_s * UNDIVIDED


def _join(one: tuple[int, float], other: tuple[int, float]) -> _Segment:
    """Return the segment between two measured sizes, exact at both."""
    (few, slow), (many, fast) = one, other
    a = (1.0 / slow - 1.0 / fast) / (1.0 / few - 1.0 / many)
    return _Segment(many, a, 1.0 / fast - a / many)


def _extend(last_two: Speeds, node_workers: int) -> tuple[float, float]:
    """Return a and b beyond the largest measured size: as up to it, but never better than the usual."""
    one, (size, speed) = last_two
    usual, _ = _scale_default((size, speed))
    if one[0] <= node_workers < size:
        # The difference shows the price of another node, not what more workers add.
        return _scale_default((size, speed))
    a = min(usual, max(0.0, _join(one, (size, speed)).a))
    return a, 1.0 / speed - a / size
