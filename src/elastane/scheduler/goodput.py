"""How fast a job would be with so many workers, from what was measured.

A step takes a part that workers divide among them and a part that they do not: ``1 / speed(n) = a / n + b``.
Two numbers smooth the noise of the measurements, and the curve is concave, so that going from one size to the
next by what it adds finds the best sizes (the greedy solution of a concave allocation; Pollux, OSDI'21,
fits a finer model of the same shape).
"""

import math
from collections.abc import Container
from functools import lru_cache
from typing import NamedTuple

UNDIVIDED = 0.02
"""Of a step that nobody has measured: 8 workers are then 7 times as fast as one, 64 are 28 times."""


class Curve(NamedTuple):
    """``speed(n) = n / (a + b * n)``, in samples per second if anything was measured, else relative."""

    a: float
    b: float

    def speed(self, workers: int) -> float:
        return workers / (self.a + self.b * workers)

    def worker_s(self, workers: int) -> float:
        """What one sample takes, in seconds of one worker."""
        return self.a + self.b * workers

    def gain(self, workers: int, more: int) -> float:
        """``log(speed(more) / speed(workers))``: the same for jobs of any absolute speed."""
        return math.log(more * (self.a + self.b * workers) / (workers * (self.a + self.b * more)))

    def efficiency(self, workers: int, more: int) -> float:
        """What each of the additional workers adds, as a part of what one alone gives."""
        alone = self.a + self.b
        return self.a * alone / ((self.a + self.b * workers) * (self.a + self.b * more))

    def needed(self, speed: float) -> float:
        """Workers for that speed; infinite if no number of them reaches it."""
        left = 1.0 - speed * self.b
        return speed * self.a / left if left > 0 else math.inf


DEFAULT = Curve(1.0 - UNDIVIDED, UNDIVIDED)


def comparable(speeds: tuple[tuple[int, float], ...], brief: Container[int]) -> tuple[tuple[int, float], ...]:
    """Return the speeds that a plan may compare.

    What was measured only for a short time may be noise. Where there is nothing else, the largest number of
    workers still counts: it alone says how fast a job is, and nothing about what more of them would be worth.

    Args:
        speeds: ``(workers, samples per second)``.
        brief: numbers of workers that were measured for a short time.
    """
    return tuple(one for one in speeds if one[0] not in brief) or speeds[-1:]


@lru_cache(maxsize=2**17)
def fitted(speeds: tuple[tuple[int, float], ...]) -> Curve:
    """The curve nearest to the measurements, by least squares of the relative error of the step time.

    Remembered, because from one plan to the next few jobs have been measured anew.

    Args:
        speeds: ``(workers, samples per second)``; what is not positive is ignored.
    """
    points = [(1.0 / n, s) for n, s in speeds if n > 0 and s > 0]
    if not points:
        return DEFAULT
    if len({x for x, _ in points}) == 1:
        scale = _scale(points, DEFAULT)
        return Curve(DEFAULT.a * scale, DEFAULT.b * scale)
    # Minimise the sum of (s * (a x + b) - 1)^2.
    sxx = sum((s * x) ** 2 for x, s in points)
    sx = sum(s * s * x for x, s in points)
    s0 = sum(s * s for _, s in points)
    tx = sum(s * x for x, s in points)
    t0 = sum(s for _, s in points)
    determinant = sxx * s0 - sx * sx
    if determinant > 0:
        a, b = (tx * s0 - t0 * sx) / determinant, (t0 * sxx - tx * sx) / determinant
        if a > 0 and b >= 0:
            return Curve(a, b)
    slope, flat = Curve(1.0, 0.0), Curve(1e-9, 1.0)
    nearest = min((slope, flat), key=lambda curve: _error(points, curve))
    scale = _scale(points, nearest)
    return Curve(nearest.a * scale, nearest.b * scale)


def _scale(points: list[tuple[float, float]], curve: Curve) -> float:
    times = [(curve.a * x + curve.b) * s for x, s in points]
    return sum(times) / sum(time * time for time in times)


def _error(points: list[tuple[float, float]], curve: Curve) -> float:
    scale = _scale(points, curve)
    return sum(((curve.a * x + curve.b) * scale * s - 1.0) ** 2 for x, s in points)
