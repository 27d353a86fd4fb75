"""A cluster of 16 nodes with four devices each, on which jobs train as fast as was measured.

A policy places all jobs once per tick. A job with other devices than before makes no progress while it
resizes. The rules are those of the published simulator, rounding included, so that its results can be
reproduced.
"""

import csv
from collections import Counter
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

from pollux.applications import MOST_NODES, NODE_DEVICES, Application, Batch, Placement

TICK_S = 60
Nodes: TypeAlias = tuple[int, ...]
"""The node of each device of a job."""


class Submission(NamedTuple):
    """A job as its user submits it.

    Args:
        name: its name.
        application: what it trains.
        submitted_s: when.
        devices: how many its user asks for; only policies without elasticity use it.
        samples: of a global batch.
        virtual_ranks: into which a global batch is cut; 0: a batch is divided evenly among any number of
            devices.
    """

    name: str
    application: Application
    submitted_s: int
    devices: int
    samples: int
    virtual_ranks: int = 0


class Job:
    """A job of the simulation.

    Args:
        submission: the job as submitted.

    Attributes:
        nodes: its devices; empty: it waits.
        resizing_s: seconds until it trains again.
        progress: steps of the smallest batch that would have taught as much.
        epoch: epochs done.
        ended_s: when it was finished.
        attained_s: device-seconds.
        resizes: how often its devices changed while it trained, and when it started again.
        resized_s: device-seconds spent in resizes.
        trained_s: seconds of the last tick in which it trained.
        trained_samples: samples that it trained on in these.
    """

    def __init__(self, submission: Submission) -> None:
        self.submission = submission
        self.application = submission.application
        self.nodes: Nodes = ()
        self.resizing_s = 0.0
        self.progress = 0.0
        self.epoch = 0
        self.ended_s: float | None = None
        self.attained_s = 0.0
        self.resizes = -1
        self.resized_s = 0.0
        self.trained_s = 0.0
        self.trained_samples = 0.0

    @property
    def name(self) -> str:
        return self.submission.name

    @property
    def placement(self) -> Placement:
        return tuple(Counter(self.nodes).values())

    def compute_speed(self, placement: Placement) -> float:
        """Return the true samples per second in a placement."""
        batch = self.divide(sum(placement))
        return batch.samples / self.application.compute_step_s(placement, batch)

    def divide(self, devices: int) -> Batch:
        return self.application.divide(self.submission.samples, devices, self.submission.virtual_ranks)

    def count_samples_left(self) -> float:
        samples = self.submission.samples
        return samples * self.application.count_steps_left(samples, self.epoch, self.progress)

    def place(self, nodes: Nodes, resize_s: float) -> None:
        """Move the job to these devices."""
        self.nodes = nodes
        if nodes:
            self.resizing_s = resize_s
            self.resizes += 1

    def advance(self, now_s: float, seconds: float) -> None:
        """Train for a tick that begins now."""
        self.trained_s = self.trained_samples = 0.0
        if not self.nodes or self.ended_s is not None:
            return
        devices = len(self.nodes)
        delay = min(self.resizing_s, seconds)
        self.resizing_s -= delay
        self.resized_s += delay * devices
        self.attained_s += delay * devices
        now_s, seconds = now_s + delay, seconds - delay
        batch = self.divide(devices)
        step_s = self.application.compute_step_s(self.placement, batch)
        self.trained_s, self.trained_samples = seconds, batch.samples * seconds / step_s
        while seconds > 0:
            speed = self.application.compute_gain(batch.samples, self.epoch) / step_s
            after = self.application.get_progress(self.epoch + 1)
            if self.progress + speed * seconds < after:
                self.progress += speed * seconds
                self.attained_s += seconds * devices
                return
            # The published simulator rounds the rest of an epoch to seconds.
            rest = round((after - self.progress) / speed)
            self.epoch, self.progress = self.epoch + 1, after
            now_s, seconds = now_s + rest, seconds - rest
            self.attained_s += rest * devices
            if self.epoch == self.application.epochs:
                self.ended_s = now_s
                return


class Policy(Protocol):
    """Decides which devices each job has."""

    def place_jobs(self, jobs: list[Job]) -> dict[str, Nodes]:
        """Return the devices of the jobs that shall have some, by name; called once per tick.

        Args:
            jobs: all that were submitted and are not finished, in the order of submission.
        """


class Outcome(NamedTuple):
    """How a workload went.

    Args:
        jobs: all finished.
        makespan_s: when the last one was.
    """

    jobs: list[Job]
    makespan_s: float

    @property
    def completions_s(self) -> list[float]:
        """Seconds from the submission of each job to its end."""
        return [(job.ended_s or 0.0) - job.submission.submitted_s for job in self.jobs]


def read_workload(path: Path, applications: dict[str, Application]) -> list[Submission]:
    with path.open(newline="") as file:
        return [
            Submission(
                name=row["name"],
                application=applications[row["application"]],
                submitted_s=int(row["time"]),
                devices=int(row["num_replicas"]),
                samples=int(row["batch_size"]),
            )
            for row in csv.DictReader(file)
        ]


def simulate(submissions: list[Submission], policy: Policy, resize_s: float) -> Outcome:
    """Run a workload until every job is finished.

    Args:
        submissions: the workload.
        policy: decides which devices each job has.
        resize_s: seconds that each resize takes.
    """
    jobs = [Job(one) for one in submissions]
    now_s = 0.0
    while any(job.ended_s is None for job in jobs):
        for job in jobs:
            job.advance(now_s, TICK_S)
        now_s += TICK_S
        present = [job for job in jobs if job.ended_s is None and job.submission.submitted_s <= now_s]
        placed = policy.place_jobs(present)
        for job in present:
            nodes = placed.get(job.name, ())
            if nodes != job.nodes:
                job.place(nodes, resize_s)
        _check_room(present)
    return Outcome(jobs, max(job.ended_s or 0.0 for job in jobs))


def _check_room(jobs: list[Job]) -> None:
    used = Counter(node for job in jobs for node in job.nodes)
    for node, devices in used.items():
        if node not in range(MOST_NODES) or devices > NODE_DEVICES:
            raise AssertionError(f"node {node} has {NODE_DEVICES} devices, not {devices}")
