"""Measure two sites over a slow link: rounds of inner steps, against each site by itself, and against DDP.

The sites are network namespaces of this machine with one worker each and one virtual link, which is limited
in both directions. "Alone" are two runs of one site at the same time, without any exchange: both cores are as
busy as with two sites, and their tokens are added. The contestants take turns, so other load on the machine
affects all alike.
"""

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import ticks
import workload
from job import HERE, Job
from machine import describe_commit, find_cpu
from node_networks import LINK, NodeNetworks, enter_first_node
from node_run import NodeRun
from node_steps import count_gradient_bytes
from processes import Processes, exit_on_sigterm
from spread import format_spread
from text import format_table

ENDLESS = 1_000_000
SITES = 2


@dataclass(frozen=True)
class RoundsJob(Job):
    """A job in rounds.

    Args:
        inner_steps: the steps of each virtual rank in a round.
        microbatch: the sequences of an inner step of a virtual rank.
        wire: the format of what crosses the link.
        group: the virtual ranks that are rounded together.
        delay: the rounds after which differences are exchanged.
    """

    inner_steps: int
    microbatch: int
    wire: str
    group: int = 1
    delay: int = 0

    def build_script_command(self, contestant: str) -> list[str]:
        return [
            str(HERE / "train_rounds.py"),
            f"--size={self.size}",
            f"--steps={self.steps}",
            f"--virtual-ranks={self.virtual_ranks}",
            f"--inner-steps={self.inner_steps}",
            f"--microbatch={self.microbatch}",
            f"--wire={self.wire}",
            f"--group={self.group}",
            f"--delay={self.delay}",
        ]

    @property
    def tokens(self) -> int:
        """The tokens of a round."""
        context = workload.SIZES[self.size].context
        return self.inner_steps * self.virtual_ranks * self.microbatch * context


@dataclass(frozen=True)
class Measured:
    """A repetition of a contestant.

    Args:
        tokens_per_s: tokens of both sites per second.
        left_bytes: the bytes that leave the first site in a round, or in a step of DDP; headers included.
    """

    tokens_per_s: float
    left_bytes: float


def compute_rate(run: NodeRun, job: RoundsJob, first: int, rounds: int) -> float:
    """Return the tokens per second of the rounds after round ``first``.

    Raises:
        RuntimeError: a worker or a site was lost, so the measurement is invalid.
    """
    if lost := run.read_events("worker.died", "worker.hung", "node.lost", "coordinator.died"):
        raise RuntimeError(f"the undisturbed run was disturbed: {lost}")
    times = {line.step: line.time for line in run.read_ledger()}
    return job.tokens * rounds / (times[first + rounds] - times[first])


def measure_sites(job: RoundsJob, networks: NodeNetworks, rounds: int) -> Measured:
    """Measure rounds of two sites."""
    with NodeRun(job, job.out / "run", networks, start=1, most=SITES) as run:
        run.join(1)
        # The first round with both has the spot check of the newcomer.
        first = run.wait_for_members(SITES).step + 2
        run.wait_for_step(first)
        before = networks.count_left_bytes()
        run.wait_for_step(first + rounds)
        left = networks.count_left_bytes() - before
        run.stop()
        return Measured(compute_rate(run, job, first, rounds), left / rounds)


def measure_alone(job: RoundsJob, networks: NodeNetworks, rounds: int) -> Measured:
    """Measure two runs of one site each at the same time."""
    with (
        NodeRun(job, job.out / "one", networks, start=1, most=1) as one,
        NodeRun(job, job.out / "other", networks, start=1, most=1) as other,
    ):
        first = max(run.wait_for_members(1).step for run in (one, other)) + 1
        for run in (one, other):
            run.wait_for_step(first + rounds)
        for run in (one, other):
            run.stop()
        return Measured(sum(compute_rate(run, job, first, rounds) for run in (one, other)), 0.0)


def measure_ddp(job: Job, networks: NodeNetworks, steps: int) -> Measured:
    """Measure steps of DDP over Gloo, one rank on each site."""
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


def measure(options: argparse.Namespace, networks: NodeNetworks, work: Path) -> dict[str, list[Measured]]:
    """Return the repetitions of each contestant."""
    size, rounds, each = options.size, options.rounds, options.ranks // SITES
    passes = options.microbatches * each
    microbatch = options.microbatches * workload.SIZES[size].microbatch

    def build_job(ranks: int, wire: str, out: Path, delay: int = 0) -> RoundsJob:
        group = options.group if ranks > each else 1
        return RoundsJob(size, ENDLESS, ranks, out, options.inner_steps, microbatch, wire, group, delay)

    def measure_in(wire: str, delay: int) -> Callable[[Path], Measured]:
        return lambda out: measure_sites(build_job(options.ranks, wire, out, delay), networks, rounds)

    contestants: dict[str, Callable[[Path], Measured]] = {
        "each site alone": lambda out: measure_alone(build_job(each, "int8", out), networks, rounds),
        **{
            f"2 sites, {wire}" + (", a round later" if delay else ""): measure_in(wire, delay)
            for wire in options.wires
            for delay in options.delays
        },
        "DDP": lambda out: measure_ddp(
            Job(size, options.ddp_steps + 2, SITES * passes, out), networks, options.ddp_steps
        ),
    }
    found: dict[str, list[Measured]] = {name: [] for name in contestants}
    for repetition in range(options.repetitions):
        for number, (name, contestant) in enumerate(contestants.items()):
            found[name].append(contestant(work / f"{repetition}-{number}"))
            print(f"{repetition + 1}. {name}: {found[name][-1].tokens_per_s:,.0f} tokens/s", flush=True)
    return found


def print_table(found: dict[str, list[Measured]], parameters: int) -> None:
    alone, ddp = found["each site alone"], found["DDP"]
    rows = []
    for name, repetitions in found.items():
        ratios = [
            [each.tokens_per_s / other.tokens_per_s for each, other in zip(repetitions, others, strict=True)]
            for others in (alone, ddp)
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
    print("\n" + format_table(heads, rows))


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
    parser.add_argument("--wires", nargs="+", default=["int8", "full"])
    parser.add_argument("--delays", type=int, nargs="+", default=[0, 1], choices=[0, 1])
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of each repetition")
    parser.add_argument("--ddp-steps", type=int, default=5, help="measured steps of DDP")
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    enter_first_node()
    exit_on_sigterm()
    with tempfile.TemporaryDirectory() as folder, NodeNetworks(options.rate) as networks:
        found = measure(options, networks, Path(folder))
    parameters = count_gradient_bytes(options.size) // 4
    print(f"\n{find_cpu()}, commit {describe_commit()}, {parameters:,} parameters, H = {options.inner_steps}")
    print(f"{options.ranks} virtual ranks, in groups of {options.group}")
    sequences = options.microbatches * workload.SIZES[options.size].microbatch
    print(f"{sequences} sequences for each inner step of a virtual rank; link: {options.rate}")
    print_table(found, parameters)


if __name__ == "__main__":
    main()
