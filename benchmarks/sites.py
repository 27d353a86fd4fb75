"""Measure two sites over a slow link: rounds of inner steps, against each site by itself, DDP and torchft.

The sites are network namespaces of this machine with one worker each and one virtual link, which is limited
in both directions. "Alone" are two runs of one site at the same time, without any exchange: both cores are as
busy as with two sites, and their tokens are added. The contestants take turns, so other load on the machine
affects all alike.

torchft's DiLoCo exchanges fp32, as ``--wires full`` does. It needs ``--torchft``: a Python that has it.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, median

import ticks
import workload
from job import Job
from machine import describe_commit, find_cpu
from node_networks import LINK, NodeNetworks, enter_first_node
from node_programs import DEFAULTS
from node_run import NodeRun
from node_steps import count_gradient_bytes
from node_torchft import NodeTorchft, require_torchft
from processes import Processes, exit_on_sigterm, wait_until
from round_phases import CHECK_S, ROUND_S, Phases, watch
from rounds_job import WIRES, RoundsJob
from spread import format_spread
from text import format_table

ENDLESS = 1_000_000
SITES = 2
ALONE, DDP = "each site alone", "DDP"


@dataclass(frozen=True)
class Measured:
    """A repetition of a contestant.

    Args:
        tokens_per_s: tokens of both sites per second.
        left_bytes: the bytes that leave the first site in a round, or in a step of DDP; headers included.
        phases: of a round; None: the contestant has no rounds.
    """

    tokens_per_s: float
    left_bytes: float
    phases: Phases | None = None


Contestant = Callable[[Path], Measured]
"""Measures once, with files in a new folder."""


def measure_runs(
    job: RoundsJob, networks: NodeNetworks, rounds: int, out: Path, *, names: Sequence[str], sites: int
) -> Measured:
    """Measure rounds of runs that train at the same time.

    Args:
        names: of the runs; each has a folder.
        sites: the number of sites of each run.

    Raises:
        RuntimeError: a worker or a site was lost, so the measurement is invalid.
    """
    jobs = [replace(job, out=out / name) for name in names]
    with ExitStack() as stack:
        runs = [
            stack.enter_context(NodeRun(each, each.out / "run", networks, start=1, most=sites))
            for each in jobs
        ]

        def check() -> None:
            for run in runs:
                if lost := run.read_events("worker.died", "worker.hung", "node.lost", "coordinator.died"):
                    raise RuntimeError(f"the undisturbed run was disturbed: {lost}")
                if failure := run.describe_exit(0) or run.describe_exit(1):
                    raise RuntimeError(f"the run has ended: {failure}")

        for run in runs:
            if sites > 1:
                run.join(1)
        for run in runs:
            # A site that has all state has made its first round, and the check of a virtual rank in it.
            run.wait_for_members(sites, complete=True)
        watched = watch([each.out for each in jobs], networks, rounds, check)
        for run in runs:
            run.stop()
    rate = sum(job.tokens / round_s for round_s in watched.round_s)
    return Measured(rate, watched.left_bytes, watched.phases)


def measure_torchft(
    job: RoundsJob, networks: NodeNetworks, rounds: int, out: Path, *, python: str
) -> Measured:
    """Measure rounds of two sites under torchft.

    Raises:
        RuntimeError: a site has failed.
    """
    job = replace(job, out=out)
    with NodeTorchft(job, networks, DEFAULTS, python, each=1) as run:
        try:
            run.join()

            def check() -> None:
                if failure := run.find_failure():
                    raise RuntimeError(failure)

            def are_together() -> bool:
                check()
                return len({tick.pid for tick in run.read_steps() if tick.workers == SITES}) == SITES

            wait_until(are_together, "a round of both sites", ROUND_S, poll_s=CHECK_S)
            watched = watch([job.out], networks, rounds, check)
        finally:
            for node in range(SITES):
                networks.clear(node)
    return Measured(job.tokens / watched.round_s[0], watched.left_bytes, watched.phases)


def measure_ddp(job: Job, networks: NodeNetworks, steps: int, out: Path) -> Measured:
    """Measure steps of DDP over Gloo, one rank on each site."""
    job = replace(job, out=out)
    job.out.mkdir(parents=True)
    with Processes(job.out / "logs") as processes:
        before = networks.count_left_bytes()
        for rank in range(SITES):
            processes.start(
                networks.wrap_command(rank, job.build_command("ddp")),
                RANK=str(rank),
                WORLD_SIZE=str(SITES),
                STORE=f"file://{(job.out / 'store').absolute()}",
                GLOO_SOCKET_IFNAME=LINK,
            )
        processes.finish(600)
        left = networks.count_left_bytes() - before
    seen = ticks.read_steps(job.out)
    pids = {tick.pid for tick in seen}
    step_s = max(
        median(
            s
            for step, s in ticks.compute_durations_s(ticks.select_process(pid, seen)).items()
            if step > job.steps - steps
        )
        for pid in pids
    )
    size = workload.SIZES[job.size]
    return Measured(job.virtual_ranks * size.microbatch * size.context / step_s, left / job.steps)


def build_contestants(options: argparse.Namespace, networks: NodeNetworks) -> dict[str, Contestant]:
    size, rounds, each = options.size, options.rounds, options.ranks // SITES
    passes = options.microbatches * each
    microbatch = options.microbatches * workload.SIZES[size].microbatch
    alone = RoundsJob(size, ENDLESS, each, Path(), options.inner_steps, microbatch, "int8")
    together = replace(alone, virtual_ranks=options.ranks, group=options.group)
    contestants: dict[str, Contestant] = {
        ALONE: partial(measure_runs, alone, networks, rounds, names=("one", "other"), sites=1)
    }
    for wire in options.wires:
        for delay in options.delays:
            job = replace(together, wire=wire, delay=delay)
            name = f"2 sites, {wire}" + (", a round later" if delay else "")
            contestants[name] = partial(measure_runs, job, networks, rounds, names=("run",), sites=SITES)
    if options.torchft:
        job = replace(together, virtual_ranks=SITES, microbatch=microbatch * each)
        contestants["torchft's DiLoCo, fp32"] = partial(
            measure_torchft, job, networks, rounds, python=options.torchft
        )
    ddp = Job(size, options.ddp_steps + 2, SITES * passes, Path())
    return {**contestants, DDP: partial(measure_ddp, ddp, networks, options.ddp_steps)}


def measure(contestants: dict[str, Contestant], repetitions: int, work: Path) -> dict[str, list[Measured]]:
    """Return the repetitions of each contestant."""
    found: dict[str, list[Measured]] = {name: [] for name in contestants}
    for repetition in range(repetitions):
        for number, (name, contestant) in enumerate(contestants.items()):
            found[name].append(contestant(work / f"{repetition}-{number}"))
            print(f"{repetition + 1}. {name}: {found[name][-1].tokens_per_s:,.0f} tokens/s", flush=True)
    return found


def format_rates(found: dict[str, list[Measured]], parameters: int) -> str:
    rows = []
    for name, repetitions in found.items():
        ratios = [
            [each.tokens_per_s / other.tokens_per_s for each, other in zip(repetitions, others, strict=True)]
            for others in (found[ALONE], found[DDP])
        ]
        rows.append(
            [
                name,
                format_spread([each.tokens_per_s for each in repetitions], digits=0),
                format_spread([each.left_bytes / parameters for each in repetitions]),
                *(format_spread(ratio) for ratio in ratios),
            ]
        )
    heads = ["", "tokens/s", "bytes that leave a site, for each parameter", "of alone", "of DDP"]
    return format_table(heads, rows)


def format_phases(found: dict[str, list[Measured]]) -> str:
    """Return the table of the seconds of a round: means over sites, rounds and repetitions."""
    heads = [
        *("seconds of a round", "begins", "computes", "waits for the other site", "exchanges"),
        *("link busy, each way", "processor, training thread", "processor, other threads"),
    ]
    rows = []
    for name, repetitions in found.items():
        phases = [each.phases for each in repetitions if each.phases is not None]
        if phases:
            columns = zip(*(vars(each).values() for each in phases), strict=True)
            rows.append([name, *(f"{mean(column):.2f}" for column in columns)])
    return format_table(heads, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="100mbit", help="of the link, in each direction")
    parser.add_argument("--size", choices=list(workload.SIZES), default="10m")
    parser.add_argument("--inner-steps", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=SITES, help="virtual ranks of both sites")
    parser.add_argument("--group", type=int, default=1, help="those that are rounded together")
    parser.add_argument(
        "--microbatches", type=int, default=1, help="those of an inner step of a virtual rank, in one pass"
    )
    parser.add_argument("--wires", nargs="+", default=["int8", "full"], choices=WIRES)
    parser.add_argument("--delays", type=int, nargs="+", default=[0, 1], choices=[0, 1])
    parser.add_argument("--torchft", default="", help="a Python that has torchft and torch")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of each repetition")
    parser.add_argument("--ddp-steps", type=int, default=5, help="measured steps of DDP")
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    enter_first_node()
    version = require_torchft(options.torchft)
    exit_on_sigterm()
    with tempfile.TemporaryDirectory() as folder, NodeNetworks(options.rate) as networks:
        found = measure(build_contestants(options, networks), options.repetitions, Path(folder))
    parameters = count_gradient_bytes(options.size) // 4
    print(f"\n{find_cpu()}, commit {describe_commit()}, {version or 'no torchft'}")
    print(f"{parameters:,} parameters, H = {options.inner_steps}, link: {options.rate}")
    print(f"{options.ranks} virtual ranks, in groups of {options.group}")
    sequences = options.microbatches * workload.SIZES[options.size].microbatch
    print(f"{sequences} sequences for each inner step of a virtual rank\n")
    print(format_rates(found, parameters))
    print(f"\n{format_phases(found)}")


if __name__ == "__main__":
    main()
