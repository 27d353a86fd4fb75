"""The two policies that Pollux was compared with, as its simulator has them.

Tiresias: Gu et al., NSDI 2019, with two queues. Optimus: Peng et al., EuroSys 2018, here with an oracle that
knows the time of a step on any number of devices and the remaining steps.
"""

from collections import Counter
from itertools import chain

from pollux.applications import MOST_NODES, NODE_DEVICES
from pollux.simulation import TICK_S, Job, Nodes

DEMOTED_AFTER_S = 16 * 3600
"""Device-seconds after which Tiresias moves a job to its second queue."""


class Tiresias:
    """Least attained service in two queues, first come, first served in each; sizes are those asked for."""

    def __init__(self) -> None:
        self._running: set[str] = set()
        self._ran_s: Counter[str] = Counter()
        self._second: list[str] = []

    def place_jobs(self, jobs: list[Job]) -> dict[str, Nodes]:
        wanted = {job.name: job.submission.devices for job in jobs}
        for name, devices in wanted.items():
            if name in self._running:
                self._ran_s[name] += TICK_S
            if name not in self._second and self._ran_s[name] * devices >= DEMOTED_AFTER_S:
                self._second.append(name)
        first = [name for name in wanted if name not in self._second]
        free = MOST_NODES * NODE_DEVICES
        self._running.clear()
        for name in (*first, *(name for name in self._second if name in wanted)):
            if wanted[name] <= free:
                self._running.add(name)
                free -= wanted[name]
        kept = {job.name: job.nodes for job in jobs if job.name in self._running and job.nodes}
        queue = [name for name in (*first, *self._second) if name in self._running]
        return place_on_freest(kept, {name: wanted[name] for name in queue})


class Optimus:
    """Devices one by one; each goes where it reduces the remaining time most."""

    def place_jobs(self, jobs: list[Job]) -> dict[str, Nodes]:
        free = MOST_NODES * NODE_DEVICES
        devices: dict[str, int] = {}
        for job in jobs:
            devices[job.name] = 1 if free else 0
            free -= devices[job.name]
        left = {job.name: _count_steps_left(job) for job in jobs}
        gains = {
            job.name: _compute_gain(job, 1, left[job.name]) if devices[job.name] and free else 0.0
            for job in jobs
        }
        by_name = {job.name: job for job in jobs}
        while free and max(gains.values(), default=0.0) > 0:
            name = max(gains, key=lambda one: gains[one])
            devices[name] += 1
            free -= 1
            gains[name] = _compute_gain(by_name[name], devices[name], left[name])
        kept = {job.name: job.nodes for job in jobs if job.nodes and len(job.nodes) == devices[job.name]}
        order = sorted(devices, key=lambda name: devices[name])
        return place_on_freest(kept, {name: devices[name] for name in order if devices[name]})


def _count_steps_left(job: Job) -> float:
    application, samples = job.application, job.submission.samples
    last = application.epochs - 1
    if last <= job.epoch:
        return 1.0
    return application.get_steps(samples, last) - application.get_steps(samples, job.epoch)


def _compute_gain(job: Job, devices: int, steps: float) -> float:
    """Return the seconds by which one more device shortens the rest of a job."""
    if devices + 1 > job.application.count_most_devices(job.submission.samples):
        return 0.0
    return (_predict_step_s(job, devices) - _predict_step_s(job, devices + 1)) * steps


def _predict_step_s(job: Job, devices: int) -> float:
    whole, rest = divmod(devices, NODE_DEVICES)
    placement = (NODE_DEVICES,) * whole + ((rest,) if rest else ())
    batch = job.application.divide(job.submission.samples, devices)
    return job.application.compute_step_s(placement, batch)


def place_on_freest(kept: dict[str, Nodes], wanted: dict[str, int]) -> dict[str, Nodes]:
    """Place each job that is not kept on the nodes with the most free devices, in order."""
    free = [NODE_DEVICES] * MOST_NODES
    for node in chain.from_iterable(kept.values()):
        free[node] -= 1
    placed = dict(kept)
    for name, devices in wanted.items():
        if name in placed:
            continue
        nodes: list[int] = []
        while len(nodes) < devices:
            node = free.index(max(free))
            taken = min(free[node], devices - len(nodes))
            nodes += [node] * taken
            free[node] -= taken
        placed[name] = tuple(nodes)
    return placed
