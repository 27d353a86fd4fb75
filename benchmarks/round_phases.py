"""Where the time of rounds goes: what each site does, the link between both, and processor time by thread."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

import ticks
from node_networks import NodeNetworks
from processes import wait_until

SAMPLE_S = 0.05
"""The time between two looks at the link."""
CHECK_S = 1.0
ROUND_S = 180.0
"""The longest time to wait for a round."""


@dataclass(frozen=True)
class SiteRound:
    """The times of a round in a process.

    Args:
        begun_s: the end of the round before.
        first_s: the first inner step begins.
        last_s: the last inner step ends.
        ended_s: the round ends: its outer step is applied.
    """

    begun_s: float
    first_s: float
    last_s: float
    ended_s: float


@dataclass(frozen=True)
class Phases:
    """The parts of a round in seconds: means over sites and rounds.

    Args:
        begin: until the first inner step.
        compute: the inner steps.
        wait: for the inner steps of the other site.
        exchange: from the last inner step of both sites to the end of the round.
        link: one direction of the link carries at least half of its rate.
        training_cpu: processor time of the threads that train.
        other_cpu: processor time of the other threads of these processes.
    """

    begin: float
    compute: float
    wait: float
    exchange: float
    link: float
    training_cpu: float
    other_cpu: float


@dataclass(frozen=True)
class Watched:
    """What some rounds have taken.

    Args:
        round_s: the seconds of a round of each job.
        left_bytes: the bytes that left the first site in a round; headers included.
        phases: of a round.
    """

    round_s: tuple[float, ...]
    left_bytes: float
    phases: Phases


def read_rounds(seen: Sequence[ticks.Tick]) -> dict[int, SiteRound]:
    """Return the rounds in the ticks of a process, by number; the first one has no beginning."""
    found: dict[int, SiteRound] = {}
    begun_s, inner_s = None, list[float]()
    for tick in seen:
        if tick.kind == "microbatch":
            inner_s.append(tick.at_s)
        elif tick.kind == "step":
            if begun_s is not None and len(inner_s) > 1:
                usual_s = median(after - before for before, after in pairwise(inner_s))
                found[tick.step] = SiteRound(begun_s, inner_s[0], inner_s[-1] + usual_s, tick.at_s)
            begun_s, inner_s = tick.at_s, []
    return found


def read_processes(out: Path) -> dict[int, list[ticks.Tick]]:
    """Return the ticks of each process of a job."""
    seen = ticks.read_all(out)
    return {pid: ticks.select_process(pid, seen) for pid in {tick.pid for tick in seen}}


def count_rounds(out: Path) -> int:
    """Return the last round that all processes of a job have ended; 0: none."""
    return min(map(_read_last_round, out.glob("*.ticks")), default=0)


def _read_last_round(file: Path) -> int:
    # Called often, so it decodes one line.
    _, found, rest = file.read_bytes().rpartition(b"\ns ")
    return int(rest.split(maxsplit=1)[0]) if found else 0


def watch(outs: Sequence[Path], networks: NodeNetworks, rounds: int, check: Callable[[], object]) -> Watched:
    """Watch some rounds of jobs that run at the same time, from the end of their next rounds on.

    Args:
        outs: the folders of the jobs; each has the ticks of its processes.
        check: called once a second; raises an error if a job does not go on.
    """
    _wait_for_rounds(outs, [count_rounds(out) + 1 for out in outs], check, lambda: None)
    begins = [count_rounds(out) for out in outs]
    pids = [pid for out in outs for pid in read_processes(out)]
    link, cpu_s = [_sample(networks)], [read_thread_cpu_s(pid) for pid in pids]
    ends = [begin + rounds for begin in begins]
    _wait_for_rounds(outs, ends, check, lambda: link.append(_sample(networks)))
    spent = [
        [now - before for before, now in zip(*pair, strict=True)]
        for pair in zip(cpu_s, map(read_thread_cpu_s, pids), strict=True)
    ]
    training_cpu_s, other_cpu_s = (sum(some) / len(pids) / rounds for some in zip(*spent, strict=True))
    spans = list(zip(outs, begins, ends, strict=True))
    times = [each for out, begin, end in spans for each in _list_times(out, begin + 1, end)]
    begin_s, compute_s, wait_s, exchange_s = (mean(some) for some in zip(*times, strict=True))
    return Watched(
        tuple((_find_end_s(out, end) - _find_end_s(out, begin)) / rounds for out, begin, end in spans),
        (link[-1][1] - link[0][1]) / rounds,
        Phases(
            begin_s,
            compute_s,
            wait_s,
            exchange_s,
            _find_busy_s(link, networks.bytes_per_s) / rounds,
            training_cpu_s,
            other_cpu_s,
        ),
    )


def _wait_for_rounds(
    outs: Sequence[Path], goals: Sequence[int], check: Callable[[], object], look: Callable[[], object]
) -> None:
    checked_at_s = time.monotonic()

    def are_made() -> bool:
        nonlocal checked_at_s
        look()
        if time.monotonic() - checked_at_s > CHECK_S:
            checked_at_s = time.monotonic()
            check()
        return all(count_rounds(out) >= goal for out, goal in zip(outs, goals, strict=True))

    rounds = max(goal - count_rounds(out) for out, goal in zip(outs, goals, strict=True))
    wait_until(are_made, f"rounds {goals}", timeout_s=ROUND_S * rounds, poll_s=SAMPLE_S)


def _list_times(out: Path, first: int, last: int) -> Iterator[tuple[float, float, float, float]]:
    """Yield the first four phases of each round of each process of a job."""
    sites = [read_rounds(seen) for seen in read_processes(out).values()]
    for number in range(first, last + 1):
        all_s = max(site[number].last_s for site in sites)
        for site in sites:
            each = site[number]
            begin_s, compute_s = each.first_s - each.begun_s, each.last_s - each.first_s
            yield begin_s, compute_s, all_s - each.last_s, each.ended_s - all_s


def _find_end_s(out: Path, number: int) -> float:
    return max(tick.at_s for tick in ticks.read_steps(out) if tick.step == number)


def _sample(networks: NodeNetworks) -> tuple[float, int, int]:
    return time.monotonic(), *networks.count_bytes()


def _find_busy_s(link: Sequence[tuple[float, int, int]], bytes_per_s: float) -> float:
    """Return the time in which the link carries at least half of its rate: the mean of both directions."""
    steps = [[now - before for before, now in zip(*pair, strict=True)] for pair in pairwise(link)]
    return mean(
        sum(step[0] for step in steps if step[direction] >= step[0] * bytes_per_s / 2) for direction in (1, 2)
    )


def read_thread_cpu_s(pid: int) -> tuple[float, float]:
    """Return the processor time of the main thread of a process, which trains, and of its other threads."""
    spent = dict[int, int]()
    for task in Path(f"/proc/{pid}/task").iterdir():
        after_name = (task / "stat").read_text().rsplit(")", 1)[1].split()
        spent[int(task.name)] = int(after_name[11]) + int(after_name[12])
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    return spent[pid] * tick_s, sum(spent.values(), -spent[pid]) * tick_s
