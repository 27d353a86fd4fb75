"""The applications of the workloads: how long a step takes, and how many steps a job needs, as measured."""

import csv
import math
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

Placement: TypeAlias = tuple[int, ...]
"""Devices on each node."""

NODE_DEVICES = 4
MOST_NODES = 16
EPOCHS = {"bert": 2, "cifar10": 100, "deepspeech2": 80, "imagenet": 90, "ncf": 10, "yolov3": 50}
MOST_LOCAL_SAMPLES = {"yolov3": 8}
"""Where a device holds fewer samples than were measured."""


class Batch(NamedTuple):
    """A global batch, divided among devices.

    Args:
        local: samples that a device computes at once.
        accumulations: how often it computes as much again before the step.
        samples: in all; at least the samples that were asked for, because of rounding.
    """

    local: int
    accumulations: int
    samples: int


class _Validation(NamedTuple):
    """One training run with a certain batch, epoch by epoch.

    Args:
        progress: steps of the smallest batch that would teach as much.
        steps: steps made.
        grad_sqr: the squared norm of the gradient.
        grad_var: the variance of the gradient.
    """

    progress: list[float]
    steps: list[float]
    grad_sqr: list[float]
    grad_var: list[float]


class Application:
    """One application, with the measurements of its folder.

    Args:
        folder: with the files ``placements.csv``, ``scalability.csv`` and ``validation-*.csv``.
    """

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self.epochs = EPOCHS[self.name]
        self._validations = {
            int(path.stem.removeprefix("validation-")): _read_validation(path)
            for path in folder.glob("validation-*.csv")
        }
        self._batches = sorted(self._validations)
        self._step_times = _StepTimes(folder)
        self.least_local = self._step_times.least_local
        self.most_local = MOST_LOCAL_SAMPLES.get(self.name, self._step_times.most_local)
        self.find_step_s = lru_cache(maxsize=None)(self._step_times.interpolate)
        self.count_steps_after = lru_cache(maxsize=None)(self._count_steps_after)
        self.compute_gain = lru_cache(maxsize=None)(self._compute_gain)

    @property
    def least_batch(self) -> int:
        return self._batches[0]

    def count_most_devices(self, samples: int) -> int:
        """Return the most devices among which a batch can be divided; ncf was measured on one only."""
        return 1 if self.name == "ncf" else samples // self.least_local

    def divide(self, samples: int, devices: int, virtual_ranks: int = 0) -> Batch:
        """Divide a batch among devices as Pollux does, with as few accumulations as possible.

        Args:
            virtual_ranks: into which the batch is cut, and a device has whole ones: a step lasts as long as
                the largest share. 0: the batch is divided evenly, rounded up to whole samples.
        """
        if virtual_ranks:
            share = math.ceil(virtual_ranks / devices) * samples // virtual_ranks
        else:
            share = math.ceil(samples / devices - 1e-8)
        accumulations = math.ceil(share / self.most_local - 1e-8) - 1
        if devices == 1 and samples > self.least_batch:
            accumulations = max(1, accumulations)
        local = math.ceil(share / (accumulations + 1) - 1e-8)
        if virtual_ranks:
            return Batch(local, accumulations, samples)
        count = devices * (accumulations + 1)
        local = min(local, self._batches[-1] // count)
        return Batch(local, accumulations, local * count)

    def compute_step_s(self, placement: Placement, batch: Batch) -> float:
        """Return the seconds of a step in this placement."""
        step_s, sync_s = self.find_step_s(placement, batch.local)
        return step_s + (step_s - sync_s) * batch.accumulations

    def _compute_gain(self, samples: int, epoch: int) -> float:
        """Return how many steps of the smallest batch a step of this batch is worth (Pollux, equation 7)."""
        sqr, var = (self._interpolate(samples, epoch, name) for name in ("grad_sqr", "grad_var"))
        return (var + sqr) / (var * self.least_batch / samples + sqr)

    def get_progress(self, epochs: int) -> float:
        """Return the progress after this many epochs."""
        return min(one.progress[epochs - 1] for one in self._validations.values()) if epochs else 0.0

    def get_steps(self, samples: int, epoch: int) -> float:
        """Return the steps of this batch after an epoch."""
        return self._interpolate(samples, epoch, "steps")

    def count_steps_left(self, samples: int, epoch: int, progress: float) -> float:
        """Return the steps that a job with this batch still has to make, in this epoch and later ones."""
        if epoch >= self.epochs:
            return 0.0
        left = (self.get_progress(epoch + 1) - progress) / self.compute_gain(samples, epoch)
        return left + self.count_steps_after(samples, epoch + 1)

    def _count_steps_after(self, samples: int, epoch: int) -> float:
        """Return the steps of this batch from the beginning of an epoch to the end."""
        progress = [self.get_progress(one) for one in range(epoch, self.epochs + 1)]
        gains = [self.compute_gain(samples, one) for one in range(epoch, self.epochs)]
        return sum((b - a) / gain for a, b, gain in zip(progress, progress[1:], gains, strict=False))

    def _interpolate(self, samples: int, epoch: int, name: str) -> float:
        below = max(batch for batch in self._batches if batch <= samples)
        above = min(batch for batch in self._batches if batch >= samples)
        low, high = (getattr(self._validations[batch], name)[epoch] for batch in (below, above))
        if below == above:
            return float(low)
        return float(((samples - below) * high + (above - samples) * low) / (above - below))


class _StepTimes:
    """Seconds of a step and of its synchronisation, by placement and samples of a device."""

    def __init__(self, folder: Path) -> None:
        from scipy.interpolate import LinearNDInterpolator

        self._measured: dict[Placement, list[tuple[int, float, float]]] = {}
        by_size: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
        for row in _read_rows(folder / "placements.csv"):
            placement = tuple(map(int, row["placement"]))
            local, times = int(row["local_bsz"]), (float(row["step_time"]), float(row["sync_time"]))
            self._measured.setdefault(placement, []).append((local, *times))
            by_size.setdefault((len(placement), sum(placement), local), []).append(times)
        self.least_local = min(row[0] for rows in self._measured.values() for row in rows)
        self.most_local = max(row[0] for rows in self._measured.values() for row in rows)
        points = [(*size, *np.mean(by_size[size], axis=0)) for size in sorted(by_size)]
        columns = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
        points += [
            tuple(float(row[column]) for column in columns) for row in _read_rows(folder / "scalability.csv")
        ]
        table = np.array(points)
        self._between = LinearNDInterpolator(table[:, :3], table[:, 3:])

    def interpolate(self, placement: Placement, local: int) -> tuple[float, float]:
        """Return both times, from measurements of this placement or else of similar ones.

        Raises:
            ValueError: nothing near was measured.
        """
        placement = min(placement[turn:] + placement[:turn] for turn in range(len(placement)))
        if placement in self._measured:
            rows = self._measured[placement]
            locals_ = [row[0] for row in rows]
            if not locals_[0] <= local <= locals_[-1]:
                raise ValueError(f"{local} samples on a device of {placement} were never measured")
            step_s, sync_s = (float(np.interp(local, locals_, [row[i] for row in rows])) for i in (1, 2))
        else:
            size = (min(len(placement), MOST_NODES), sum(placement), local)
            step_s, sync_s = map(float, self._between([size])[0])
        if math.isnan(step_s):
            raise ValueError(f"{local} samples on a device of {placement} were never measured")
        return step_s, sync_s


def _read_rows(path: Path) -> Iterable[dict[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def _read_validation(path: Path) -> _Validation:
    rows = [*_read_rows(path)]
    columns = ("progress", "iteration", "grad_sqr", "grad_var")
    return _Validation(*([float(row[column]) for row in rows] for column in columns))


def read_applications(traces: Path) -> dict[str, Application]:
    """Return the applications by name, from the folder ``traces`` of the artifact."""
    return {name: Application(traces / name) for name in EPOCHS}
