"""Measure the usual step of four workers on two nodes: against one node, and against DDP on the same link.

The nodes are network namespaces of this machine with two workers each and one virtual link. The contestants
take turns, so other load on the machine affects all alike. The control is the run on two nodes once more.
"""

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

import ticks
import workload
from job import Job
from machine import describe_commit, find_cpu
from node_networks import LINK, NodeNetworks, enter_first_node
from node_run import NodeRun
from processes import Processes, exit_on_sigterm, wait_until
from setting import Usual
from spread import format_spread
from text import format_table
from usual_step import compute_ratios, compute_step_s

EACH = 2
"""The workers of a node."""
WORKERS = 2 * EACH
VIRTUAL_RANKS = 2 * WORKERS


@dataclass(frozen=True)
class Measured:
    """A repetition of a contestant.

    Args:
        step_s: the median step of the slowest worker, in seconds.
        left_bytes: the bytes that leave the first node in a step, headers and control included.
    """

    step_s: float
    left_bytes: float


def measure_elastane(job: Job, networks: NodeNetworks, usual: Usual, nodes: int) -> Measured:
    """Measure steps of four workers.

    Raises:
        RuntimeError: a worker or a node was lost, so the measurement is invalid.
    """
    start = WORKERS // nodes
    with NodeRun(job, job.out / "run", networks, start=start, most=WORKERS) as run:
        if nodes > 1:
            run.join(EACH)
        first = run.wait_for_members(WORKERS).step + usual.warmup
        run.wait_for_step(first)
        before = networks.count_left_bytes()
        run.wait_for_step(first + usual.steps)
        left = networks.count_left_bytes() - before
        run.stop()
        if lost := run.read_events("worker.died", "worker.hung", "node.lost", "coordinator.died"):
            raise RuntimeError(f"the undisturbed run was disturbed: {lost}")
    seen = ticks.read_steps(job.out)
    step_s = max(
        median(
            s
            for step, s in ticks.compute_durations_s(ticks.select_process(pid, seen)).items()
            if first < step <= first + usual.steps
        )
        for pid in {tick.pid for tick in seen}
    )
    return Measured(step_s, left / usual.steps)


def measure_ddp(job: Job, networks: NodeNetworks, usual: Usual) -> Measured:
    """Measure steps of four ranks of DDP over Gloo."""
    job.out.mkdir(parents=True)
    with Processes(job.out / "logs") as processes:
        for rank in range(WORKERS):
            processes.start(
                networks.wrap_command(rank // EACH, job.build_command("ddp")),
                RANK=str(rank),
                WORLD_SIZE=str(WORKERS),
                STORE=f"file://{(job.out / 'store').absolute()}",
                GLOO_SOCKET_IFNAME=LINK,
            )
        wait_until(
            lambda: any(tick.step >= usual.warmup for tick in ticks.read_steps(job.out)), "the first steps"
        )
        before = networks.count_left_bytes()
        processes.finish(600)
        left = networks.count_left_bytes() - before
    return Measured(compute_step_s(job, usual), left / usual.steps)


def measure(
    size: str, networks: NodeNetworks, usual: Usual, repetitions: int, work: Path
) -> dict[str, list[Measured]]:
    """Return the repetitions of each contestant."""
    endless, whole = 1_000_000, usual.warmup + usual.steps
    contestants: dict[str, tuple[int, Callable[[Job], Measured]]] = {
        "Elastane, 1 node": (endless, lambda job: measure_elastane(job, networks, usual, 1)),
        "Elastane, 2 nodes": (endless, lambda job: measure_elastane(job, networks, usual, 2)),
        "DDP, 2 nodes": (whole, lambda job: measure_ddp(job, networks, usual)),
        "Elastane, 2 nodes again": (endless, lambda job: measure_elastane(job, networks, usual, 2)),
    }
    found: dict[str, list[Measured]] = {name: [] for name in contestants}
    for repetition in range(repetitions):
        for number, (name, (steps, contestant)) in enumerate(contestants.items()):
            job = Job(size, steps, VIRTUAL_RANKS, work / f"{repetition}-{number}")
            found[name].append(contestant(job))
            print(f"{repetition + 1}. {name}: {found[name][-1].step_s:.3f} s", flush=True)
    return found


def count_gradient_bytes(size: str) -> int:
    with torch.device("meta"):
        return 4 * sum(weight.numel() for weight in workload.GPT(workload.SIZES[size]).parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="", help="of the link, for example 1gbit; default: not limited")
    parser.add_argument("--size", choices=list(workload.SIZES), default="4m")
    parser.add_argument("--steps", type=int, default=30, help="measured steps of each repetition")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="few steps, to try the program")
    options = parser.parse_args()
    enter_first_node()
    exit_on_sigterm()
    usual = Usual(warmup=3, steps=10) if options.quick else Usual(warmup=5, steps=options.steps)
    repetitions = 1 if options.quick else options.repetitions
    with tempfile.TemporaryDirectory() as folder, NodeNetworks(options.rate) as networks:
        found = measure(options.size, networks, usual, repetitions, Path(folder))
    gradient_bytes = count_gradient_bytes(options.size)
    print(f"\n{find_cpu()}, commit {describe_commit()}, model {options.size}, {repetitions} repetitions")
    print(f"2 nodes x {EACH} workers, link: {options.rate or 'not limited'}; G is {gradient_bytes:,} bytes\n")
    print_tables(found, gradient_bytes)


def print_tables(found: dict[str, list[Measured]], gradient_bytes: int) -> None:
    rows = [
        [
            name,
            format_spread([each.step_s for each in repetitions], "s", digits=3),
            format_spread([each.left_bytes / gradient_bytes for each in repetitions], "G"),
        ]
        for name, repetitions in found.items()
    ]
    print(format_table(["", "step", "leaves a node in a step"], rows))
    one, two, ddp, again = ([each.step_s for each in repetitions] for repetitions in found.values())
    ratios = {
        "Elastane, 2 nodes / 1 node": compute_ratios(two, one),
        "Elastane / DDP, 2 nodes": compute_ratios(again, ddp),
        "control: Elastane, 2 nodes / itself": compute_ratios(again, two),
    }
    rows = [[name, format_spread(each, digits=3)] for name, each in ratios.items()]
    print("\n" + format_table(["", "ratio"], rows))


if __name__ == "__main__":
    main()
