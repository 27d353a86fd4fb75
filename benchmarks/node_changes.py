"""Let a node join and die: Elastane, and torchrun's elastic agents, in turns.

The nodes are network namespaces of this machine with two workers each and one virtual link. All processes of
the node that joined are killed at once. The control is two processes on the other node that import torch,
build the model and compute one batch: the cost of sharing the cores with a node that starts.

torchrun goes back to a snapshot, which its script writes every ten steps. The node that stays is the one with
the rendezvous.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

import ticks
import workload
from job import HERE, Job
from join import measure_disturbance
from machine import describe_commit, find_cpu
from node_networks import ADDRESSES, LINK, NodeNetworks, enter_first_node
from node_run import NodeRun
from processes import Processes, exit_on_sigterm, wait_until
from restart import count_lost_steps, find_longest_stall_s
from spread import format_spread
from text import format_table
from torchrun import AGENT_ENVIRONMENT, QUICK_START, TorchrunRun, build_agent_command

EACH = 2
"""The workers of a node."""
VIRTUAL_RANKS = 2 * EACH
AFTERWARDS_STEPS = 3
ENDLESS = 1_000_000
WAIT_S = 180.0


def kill(pids: set[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_for_steps(run: NodeRun, steps: int) -> None:
    run.wait_for_step(run.count_steps() + steps)


def wait_for_workers(run: NodeRun, workers: int) -> float:
    """Return the monotonic time of the first step by a changed number of workers, which is still to come."""
    before = run.count_steps()

    def find_step() -> int | None:
        lines = run.read_ledger()[before:]
        return next((line.step for line in lines if len(line.workers) == workers), None)

    wait_until(lambda: find_step() is not None, f"a step of {workers} workers", WAIT_S)
    wait_for_steps(run, AFTERWARDS_STEPS)
    step = find_step()
    return min(tick.at_s for tick in ticks.read_steps(run.job.out) if tick.step == step)


def measure_elastane(job: Job, networks: NodeNetworks, calm_steps: int) -> dict[str, float]:
    """Return the costs of a join and of a death, in seconds and in usual steps."""
    with NodeRun(job, job.out / "run", networks, start=EACH, most=2 * EACH) as run:
        answer = run.wait_for_members(EACH)
        pids = [row.pid for row in answer.processes if row.role == "worker"]
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
        name = run.join(EACH)
        joined_s = wait_for_workers(run, 2 * EACH)
        join = measure_disturbance(ticks.read_steps(job.out), pids, join_s, calm_steps)
        wait_for_steps(run, calm_steps)
        rows = run.wait_for_members(2 * EACH).processes
        death_s = time.monotonic()
        kill({run.programs.pop(name).pid, *(row.pid for row in rows if row.node == name)})
        died_s = wait_for_workers(run, EACH)
        end_s, seen = time.monotonic(), ticks.read_steps(job.out)
    return {
        "usual_s": join["usual_s"],
        "control_slowest_over_usual": control["slowest_over_usual"],
        "join_slowest_over_usual": join["slowest_over_usual"],
        "join_first_s": joined_s - join_s,
        "join_stall_s": find_longest_stall_s(seen, join_s, death_s),
        "join_lost_steps": count_lost_steps(seen, join_s, death_s),
        "death_first_s": died_s - death_s,
        "death_stall_s": find_longest_stall_s(seen, death_s, end_s),
        "death_lost_steps": count_lost_steps(seen, death_s, end_s),
    }


class NodeTorchrun(TorchrunRun):
    """Elastic agents on nodes, of which the first one has the rendezvous."""

    def __init__(self, job: Job, folder: Path, networks: NodeNetworks) -> None:
        super().__init__(job, folder)
        self._networks = networks

    def start_agent(self, node: int = 0) -> "subprocess.Popen[bytes]":
        # Without it an agent takes itself for the host only at the address of its host's name.
        conf = f"{QUICK_START},is_host={node == 0}"
        command = build_agent_command(self.job, ADDRESSES[0], ADDRESSES[node], EACH, conf)
        return self.processes.start(
            self._networks.wrap_command(node, command), GLOO_SOCKET_IFNAME=LINK, **AGENT_ENVIRONMENT
        )


def wait_for_new_pids(run: TorchrunRun, count: int) -> float:
    """Wait for steps of this many new processes; return the monotonic time of the first one."""
    before = {tick.pid for tick in run.read_ticks()}

    def find_new() -> list[ticks.Tick]:
        return [tick for tick in run.read_ticks() if tick.pid not in before]

    wait_until(lambda: len({tick.pid for tick in find_new()}) == count, f"steps of {count} workers", WAIT_S)
    return find_new()[0].at_s


def list_children(pid: int) -> set[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return {int(child) for task in tasks for child in task.read_text().split()}


def measure_torchrun(job: Job, networks: NodeNetworks, calm_steps: int) -> dict[str, float]:
    """Return the costs of a join and of a death, in seconds."""
    with NodeTorchrun(job, job.out / "logs", networks) as run:
        run.start_agent()
        run.wait_for_step(calm_steps + AFTERWARDS_STEPS)
        own = ticks.select_process(run.find_newest_pids(1)[0], run.read_ticks())
        usual_s = median(list(ticks.compute_durations_s(own).values())[-calm_steps:])
        join_s = time.monotonic()
        agent = run.start_agent(1)
        joined_s = wait_for_new_pids(run, 2 * EACH)
        run.wait_for_step(run.find_last_step() + calm_steps)
        death_s = time.monotonic()
        kill({agent.pid, *list_children(agent.pid)})
        run.processes.started.remove(agent)
        agent.wait()
        died_s = wait_for_new_pids(run, EACH)
        run.wait_for_step(run.find_last_step() + AFTERWARDS_STEPS)
        end_s, seen = time.monotonic(), run.read_ticks()
    return {
        "usual_s": usual_s,
        "join_first_s": joined_s - join_s,
        "join_stall_s": find_longest_stall_s(seen, join_s, death_s),
        "join_lost_steps": count_lost_steps(seen, join_s, death_s),
        "death_first_s": died_s - death_s,
        "death_stall_s": find_longest_stall_s(seen, death_s, end_s),
        "death_lost_steps": count_lost_steps(seen, death_s, end_s),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=list(workload.SIZES), default="4m")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one repetition, to try the program")
    options = parser.parse_args()
    enter_first_node()
    exit_on_sigterm()
    # No multiple of the steps between two snapshots: the death comes about halfway between them.
    repetitions, calm_steps = (1, 15) if options.quick else (options.repetitions, 25)
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder, NodeNetworks() as networks:
        for repetition in range(repetitions):
            for name, found, measure in (
                ("elastane", ours, measure_elastane),
                ("torchrun", theirs, measure_torchrun),
            ):
                job = Job(options.size, ENDLESS, VIRTUAL_RANKS, Path(folder) / f"{name}-{repetition}")
                found.append(measure(job, networks, calm_steps))
                print(f"{repetition + 1}. {name}: {found[-1]}", flush=True)
    print(f"\n{find_cpu()}, commit {describe_commit()}, model {options.size}, {repetitions} repetitions\n")
    print_tables(ours, theirs)


def print_tables(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> None:
    labels = {
        "usual_s": "usual step of the first node",
        "join_first_s": "a node joins: until the first step at the new size",
        "join_stall_s": "longest time without a new step",
        "join_lost_steps": "steps made again",
        "death_first_s": "a node is killed: until the first step at the new size",
        "death_stall_s": "longest time without a new step",
        "death_lost_steps": "steps made again",
    }

    def select(found: list[dict[str, float]], key: str) -> str:
        seconds = key.endswith("_s")
        return format_spread([each[key] for each in found], "s" if seconds else "", digits=2 * seconds)

    rows = [[label, select(ours, key), select(theirs, key)] for key, label in labels.items()]
    print(format_table(["", "Elastane", "torchrun"], rows))
    join, control = ([each[f"{key}_slowest_over_usual"] for each in ours] for key in ("join", "control"))
    rows = [
        ["a node joins", format_spread(join), f"at most {1.1 * median(control):.2f}"],
        ["control: two bystanders start", format_spread(control), ""],
    ]
    print("\n" + format_table(["", "slowest step of the others / usual", "1.1 x the control"], rows))


if __name__ == "__main__":
    main()
