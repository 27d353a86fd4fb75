"""The speed of a job at another size, predicted from its measured speeds.

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
"""The undivided part of a step that was never measured: 8 workers are then 7 times as fast as one, 64 are 28
times as fast."""


class SpeedCurve(NamedTuple):
    """``speed(n) = n / (a + b * n)``, in samples per second if anything was measured, else relative."""

    a: float
    b: float

    def compute_speed(self, workers: int) -> float:
        return workers / (self.a + self.b * workers)

    def compute_worker_s(self, workers: int) -> float:
        """Return the worker-seconds of one sample."""
        return self.a + self.b * workers

    def compute_gain(self, workers: int, more: int) -> float:
        """Return ``log(speed(more) / speed(workers))``, which is the same for jobs of any absolute speed."""
        return math.log(more * (self.a + self.b * workers) / (workers * (self.a + self.b * more)))

    def compute_efficiency(self, workers: int, more: int) -> float:
        """Return the speed that each additional worker adds, as a part of the speed of one worker alone."""
        alone = self.a + self.b
        return self.a * alone / ((self.a + self.b * workers) * (self.a + self.b * more))

    def compute_needed_workers(self, speed: float) -> float:
        """Return the workers for a speed; infinite if no number of them reaches it."""
        left = 1.0 - speed * self.b
        return speed * self.a / left if left > 0 else math.inf


DEFAULT = SpeedCurve(1.0 - UNDIVIDED, UNDIVIDED)


def select_comparable_speeds(
    speeds: tuple[tuple[int, float], ...], brief: Container[int]
) -> tuple[tuple[int, float], ...]:
    """Return the speeds that a plan may compare.

    A size that was measured only for a short time may be noise. If there is no other size, the largest one
    still counts: it shows the speed of the job, but not the worth of more workers.

    Args:
        speeds: ``(workers, samples per second)``.
        brief: numbers of workers that were measured for a short time.
    """
    return tuple(one for one in speeds if one[0] not in brief) or speeds[-1:]


@lru_cache(maxsize=2**17)
def fit_speed_curve(speeds: tuple[tuple[int, float], ...]) -> SpeedCurve:
    """Return the curve nearest to the measurements, by least squares of the relative error of the step time.

    The result is cached, because few jobs are measured anew from one plan to the next.

    Args:
        speeds: ``(workers, samples per second)``; pairs that are not positive are ignored.
    """
    points = [(1.0 / n, s) for n, s in speeds if n > 0 and s > 0]
    if not points:
        return DEFAULT
    if len({x for x, _ in points}) == 1:
        scale = _compute_scale(points, DEFAULT)
        return SpeedCurve(DEFAULT.a * scale, DEFAULT.b * scale)
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
            return SpeedCurve(a, b)
    slope, flat = SpeedCurve(1.0, 0.0), SpeedCurve(1e-9, 1.0)
    nearest = min((slope, flat), key=lambda curve: _compute_error(points, curve))
    scale = _compute_scale(points, nearest)
    return SpeedCurve(nearest.a * scale, nearest.b * scale)


def _compute_scale(points: list[tuple[float, float]], curve: SpeedCurve) -> float:
    times = [(curve.a * x + curve.b) * s for x, s in points]
    return sum(times) / sum(time * time for time in times)


def _compute_error(points: list[tuple[float, float]], curve: SpeedCurve) -> float:
    scale = _compute_scale(points, curve)
    return sum(((curve.a * x + curve.b) * scale * s - 1.0) ** 2 for x, s in points)
