"""The figures of an arm of the pilot, computed from its records."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from statistics import mean, median

import msgspec
from elastane.cluster.controller.figures import INTERVENTIONS
from elastane.run.observability.attempts import compute_attempt_costs
from elastane.run.observability.run_files import decode_ledger_line, read_lines, read_run

import ticks
from pilot.record import ArmRecord, Observation
from pilot.scenario import History, Scenario, compute_capacity, compute_device_s

SETTLED_S = 15.0
"""The time in which workers leave withdrawn devices: a step of one worker, and an observation."""


class Queue(msgspec.Struct, frozen=True):
    """Seconds from the submission to the grant of the first devices."""

    p50_s: float
    longest_s: float


class Worked(msgspec.Struct, frozen=True):
    """The numbers of microbatches, by their result.

    Args:
        committed: those of committed steps.
        again: those begun in addition, because of deaths and of attempts that went back.
        rehearsed: those of joining workers, one each.
        lost_steps: the number of steps that a later attempt repeated.
    """

    committed: int
    again: int
    rehearsed: int
    lost_steps: int


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one arm.

    Args:
        queue: the waits of all jobs.
        queue_by_team: the waits of the jobs of each team.
        first_step_s: the median time from the submission to the first step.
        done_s: the mean time from the submission to the end.
        all_done_s: the time from the beginning to the end of the last job.
        available_device_s: the device-seconds that jobs could have until then.
        used_device_s: the device-seconds that they had.
        training_device_s: the device-seconds of committed steps.
        worked: the numbers of microbatches.
        cost: the cost in the currency of the prices.
        resizes: the changes of a job's size while it ran.
        most_resizes: the most resizes of one job.
        back_and_forth: the resizes that undid the previous one within a cooldown.
        preemptions: the jobs that were stopped for others.
        crashes: the attempts that ended by themselves and were followed by another.
        interventions: the actions with which operators helped; see `INTERVENTIONS`.
        most_beyond: the most devices in use in a pool beyond the existing ones; see `find_most_beyond`.
    """

    queue: Queue
    queue_by_team: dict[str, Queue]
    first_step_s: float
    done_s: float
    all_done_s: float
    available_device_s: float
    used_device_s: float
    training_device_s: float
    worked: Worked
    cost: float
    resizes: int
    most_resizes: int
    back_and_forth: int
    preemptions: int
    crashes: int
    interventions: int
    most_beyond: int

    @property
    def utilisation(self) -> float:
        return self.used_device_s / self.available_device_s

    @property
    def training(self) -> float:
        return self.training_device_s / self.available_device_s


def compute_figures(arm: ArmRecord, scenario: Scenario) -> Figures:
    """Return the figures of an arm after the end of all its jobs."""
    end_s = arm.began_s + arm.ended_s
    waits = {
        job.name: (end_s if job.started_s is None else job.started_s) - job.submitted_s for job in arm.jobs
    }
    each = [count_work(arm, job.name, scenario.virtual_ranks) for job in arm.jobs]
    committed = sum(one.committed for one in each)
    cooldown_s = scenario.cluster.rules.cooldown_s if scenario.cluster.rules else 0.0
    capacity = compute_capacity(scenario)
    return Figures(
        queue=_summarize_waits(waits.values()),
        queue_by_team={
            team: _summarize_waits(waits[job.name] for job in arm.jobs if job.team == team)
            for team in sorted({job.team for job in arm.jobs})
        },
        first_step_s=median(_list_first_steps_s(arm)),
        done_s=mean((job.ended_s or end_s) - job.submitted_s for job in arm.jobs),
        all_done_s=arm.ended_s,
        available_device_s=sum(compute_device_s(one, arm.ended_s) for one in capacity.values()),
        used_device_s=sum(
            row.owned_device_s + row.borrowed_device_s + row.spot_device_s for row in arm.usage
        ),
        training_device_s=committed * scenario.microbatch_s,
        worked=Worked(
            committed,
            sum(one.again for one in each),
            sum(one.rehearsed for one in each),
            sum(one.lost_steps for one in each),
        ),
        cost=sum(row.cost for row in arm.usage),
        resizes=sum(job.resizes for job in arm.jobs),
        most_resizes=max(job.resizes for job in arm.jobs),
        back_and_forth=sum(
            count_reversals(list_sizes(arm.observations, job.name), cooldown_s) for job in arm.jobs
        ),
        preemptions=sum(job.preemptions for job in arm.jobs),
        crashes=sum(job.crashes for job in arm.jobs),
        interventions=sum(line.action in INTERVENTIONS for line in arm.audit),
        most_beyond=find_most_beyond(arm.observations, capacity),
    )


def count_work(arm: ArmRecord, job: str, virtual_ranks: int) -> Worked:
    """Count a job's microbatches by its ledger, its events and the counts of its workers."""
    run_dir = arm.run_dir(job)
    if not run_dir.ledger.exists():
        return Worked(0, 0, 0, 0)
    run = read_run(run_dir)
    begun = ticks.read_microbatches(arm.get_ticks_folder(job))
    rehearsed = len({tick.pid for tick in begun})
    committed = len(run.ledger) * virtual_ranks
    lost = sum(attempt.lost_steps for attempt in compute_attempt_costs(run.events, run.ledger))
    return Worked(committed, len(begun) - committed - rehearsed, rehearsed, lost)


def list_sizes(observations: Iterable[Observation], job: str) -> list[tuple[float, int]]:
    """Return ``(from this second on, granted workers)`` of a job for each observed change."""
    found: list[tuple[float, int]] = []
    for observation in observations:
        if observation.job == job and (not found or found[-1][1] != observation.size):
            found.append((observation.at_s, observation.size))
    return found


def count_reversals(sizes: Sequence[tuple[float, int]], within_s: float) -> int:
    """Count the resizes that undid the previous one within this time; starts and ends do not count."""
    changes = [(at_s, after - before) for (_, before), (at_s, after) in pairwise(sizes) if before and after]
    return sum(
        first * second < 0 and later_s - earlier_s < within_s
        for (earlier_s, first), (later_s, second) in pairwise(changes)
    )


def find_most_beyond(observations: Sequence[Observation], capacity: Mapping[str, History]) -> int:
    """Return the most devices used in a pool beyond those that existed, except those that may be leaving.

    Jobs are observed one after the other, so only the values on which two rounds of observations agree count.
    """
    using: dict[str, Mapping[str, int]] = {}
    beyond: list[int] = []
    for at_s, some in groupby(observations, lambda observation: observation.at_s):
        using |= {observation.job: observation.uses for observation in some}
        used = {pool: sum(uses.get(pool, 0) for uses in using.values()) for pool in capacity}
        beyond.append(
            max(used[pool] - _find_recent_most(history, at_s) for pool, history in capacity.items())
        )
    return max((min(pair) for pair in pairwise(beyond)), default=0)


def _find_recent_most(history: History, at_s: float) -> int:
    ends = [*(from_s for from_s, _ in history[1:]), math.inf]
    lately = zip(history, ends, strict=True)
    return max(devices for (from_s, devices), end_s in lately if from_s <= at_s and end_s > at_s - SETTLED_S)


def _list_first_steps_s(arm: ArmRecord) -> list[float]:
    found = []
    for job in arm.jobs:
        ledger = read_lines(arm.run_dir(job.name).ledger, decode_ledger_line, torn_tail=True)
        found += [ledger[0].time - job.submitted_s] if ledger else []
    return found


def _summarize_waits(waits: Iterable[float]) -> Queue:
    found = [*waits]
    return Queue(median(found), max(found))
