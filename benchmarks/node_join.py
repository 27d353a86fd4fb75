"""Let a node join a run of Elastane, and compare the slowest step of the others with that beside a bystander.

The nodes are network namespaces of this machine with two workers each and one virtual link. The control is
two processes on the other node that import torch, build the model and compute one batch: the cost of sharing
the cores with a node that starts.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import ticks
import workload
from job import HERE, Job
from join import AFTERWARDS_STEPS, measure_disturbance
from machine import describe_commit, find_cpu
from node_networks import NodeNetworks, enter_first_node
from node_programs import EACH
from node_run import WAIT_S, NodeRun
from processes import Processes, exit_on_sigterm
from spread import format_spread
from text import format_table


def measure(job: Job, networks: NodeNetworks, calm_steps: int) -> tuple[float, float]:
    """Return the slowest step of the first node over its usual one: at the join, and beside bystanders."""
    with NodeRun(job, job.out / "run", networks, start=EACH, most=2 * EACH) as run:
        pids = [row.pid for row in run.wait_for_members(EACH).processes if row.role == "worker"]
        wait_for_steps(run, calm_steps + AFTERWARDS_STEPS)
        control_s = time.monotonic()
        with Processes(job.out / "bystanders") as processes:
            for _ in range(EACH):
                bystander = [sys.executable, str(HERE / "bystander.py"), job.size]
                processes.start(networks.wrap_command(1, bystander))
            processes.finish(WAIT_S)
        wait_for_steps(run, AFTERWARDS_STEPS)
        control = measure_disturbance(ticks.read_steps(job.out), pids, control_s, calm_steps)
        wait_for_steps(run, calm_steps)
        join_s = time.monotonic()
        run.join(EACH)
        run.wait_for_members(2 * EACH)
        wait_for_steps(run, AFTERWARDS_STEPS)
        join = measure_disturbance(ticks.read_steps(job.out), pids, join_s, calm_steps)
    return join["slowest_over_usual"], control["slowest_over_usual"]


def wait_for_steps(run: NodeRun, steps: int) -> None:
    run.wait_for_step(run.count_steps() + steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=list(workload.SIZES), default="4m")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one repetition, to try the program")
    options = parser.parse_args()
    enter_first_node()
    exit_on_sigterm()
    repetitions, calm_steps = (1, 15) if options.quick else (options.repetitions, 25)
    joins: list[float] = []
    controls: list[float] = []
    with tempfile.TemporaryDirectory() as folder, NodeNetworks() as networks:
        for repetition in range(repetitions):
            job = Job(options.size, 1_000_000, 2 * EACH, Path(folder) / str(repetition))
            join, control = measure(job, networks, calm_steps)
            joins.append(join)
            controls.append(control)
            print(f"{repetition + 1}. join: {join:.2f}, control: {control:.2f}", flush=True)
    print(f"\n{find_cpu()}, commit {describe_commit()}, model {options.size}, {repetitions} repetitions\n")
    rows = [
        ["a node joins", format_spread(joins), f"at most {1.1 * median(controls):.2f}"],
        ["control: two bystanders start", format_spread(controls), ""],
    ]
    print(format_table(["", "slowest step of the others / usual", "1.1 x the control"], rows))


if __name__ == "__main__":
    main()
