"""Measure workers of two processes, which divide their model by FSDP2, beside HSDP and beside usual workers.

Contestants of a comparison train in turns, in blocks of steps; see `blocks`. Prints one JSON object: each
figure as its median with the lowest and the highest one.

- ``step``: 2 workers of 2 processes over HSDP of 2 x 2 processes, one ratio for each pair of blocks.
- ``memory``: the peak of a process over that of HSDP, without the slots in which gradients are added.
- ``death``: one process is killed; seconds until the step commits, without computing; with the worker that
  takes its place, and again while the processes of that are stopped, so that it takes no processor.
- ``join``: the request for one more worker of 2 processes until its first step, over that of a worker of one.
- ``planning``: what a worker of 8 processes computes when it joins 63 others, with 13 B parameters.
"""

import argparse
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from elastane.run.nouns.membership import Generation, Member
from elastane.run.protocol import events, messages
from elastane.run.protocol.layout import FRESH, Layout, cut_blocks
from elastane.run.protocol.member_machine import MemberMachine
from elastane.run.protocol.shares import assign_shares
from elastane.run.protocol.tree import find_spans

import blocks
import ddp
import death
import memory
import ticks
from elastane_run import ElastaneRun
from job import Job
from processes import Processes, exit_on_sigterm, wait_until
from setting import Setting
from spread import format_spread

WORKERS, PROCESSES = 2, 2
TOTAL = WORKERS * PROCESSES
VIRTUAL_RANKS = 8
GANGS = f"--processes={PROCESSES}"
SETTLED_STEPS = 2
"""The first steps of a block, which do not count: one begins before the block."""
LOOK_S = 0.005
WIDE, MANY = 8, 64
"""The processes and the number of the workers of a plan."""
LAYERS, CHANNELS, INNER, VOCABULARY = 40, 5120, 13824, 32000
"""The shape of a Llama of 13 B parameters."""


@contextmanager
def train_gangs(job: Job, folder: Path, start: int, **environment: str) -> Iterator[ElastaneRun]:
    with ElastaneRun(
        job, folder, start=start, most=WORKERS, options=(GANGS,), environment=environment
    ) as run:
        yield run


# -- the usual step ---------------------------------------------------------------------------------------


def measure_step(setting: Setting) -> dict[str, str]:
    """Compare steps with those of HSDP, in turns."""
    out = setting.work / "step"
    out.mkdir()
    file, jobs = out / "turn", {name: make_job(setting.size, out / name) for name in ("gangs", "hsdp")}
    blocks.begin_block(file, "")
    with (
        train_gangs(jobs["gangs"], out / "run", WORKERS, **blocks.build_environment(file, "gangs")) as run,
        Processes(out / "hsdp-logs") as processes,
    ):
        environment = blocks.build_environment(file, "hsdp")
        ddp.start(processes, jobs["hsdp"], TOTAL, script="hsdp", **environment)
        blocks.begin_block(file, "gangs")
        run.wait_for_members(WORKERS)
        seconds: dict[str, list[float]] = {name: [] for name in jobs}
        for _ in range(1 + setting.repetitions):
            for name, job in jobs.items():
                seconds[name].append(measure_block(file, name, job, setting.calm_steps))
    pairs = list(zip(seconds["gangs"], seconds["hsdp"], strict=True))[1:]
    return {
        "gangs_s": format_spread([ours for ours, _ in pairs], digits=4),
        "hsdp_s": format_spread([theirs for _, theirs in pairs], digits=4),
        "gangs_over_hsdp": format_spread([ours / theirs for ours, theirs in pairs], digits=3),
    }


def make_job(size: str, out: Path) -> Job:
    return Job(size, 1_000_000, VIRTUAL_RANKS, out)


def measure_block(file: Path, name: str, job: Job, steps: int) -> float:
    """Let a contestant make some steps; return the median of their seconds."""
    begun = max((tick.step for tick in ticks.read_steps(job.out)), default=0)
    blocks.begin_block(file, name)
    first = begun + SETTLED_STEPS
    wait_until(
        lambda: any(tick.step >= first + steps for tick in ticks.read_steps(job.out)),
        f"{steps} steps of {name}",
        timeout_s=300,
        poll_s=0.1,
    )
    durations = ticks.compute_mean_durations_s(ticks.read_steps(job.out))
    return median(s for step, s in durations.items() if first < step <= first + steps)


# -- memory ------------------------------------------------------------------------------------------------


def measure_memory(setting: Setting) -> dict[str, str]:
    """Compare the peak memory of a process with that of HSDP, in MB."""
    ours, theirs, slots = [], [], []
    for repetition in range(memory.REPETITIONS):
        out = setting.work / f"memory-{repetition}"
        job = Job(setting.memory, memory.STEPS, VIRTUAL_RANKS, out / "hsdp")
        with Processes(out / "logs") as processes:
            pids = ddp.start(processes, job, TOTAL, script="hsdp")
            with memory.Peak(lambda pids=pids: pids, read_memory_mb) as peak:  # type: ignore[misc]
                processes.finish(timeout_s=600)
        theirs.append(peak.mb / TOTAL)
        job = Job(setting.memory, memory.STEPS, VIRTUAL_RANKS, out / "gangs")
        with train_gangs(job, out / "run", WORKERS) as run:
            run.wait(run.run_dir.lock.exists, "the lock of the run")
            run.wait(lambda run=run: count_processes(run) == TOTAL, "all processes started")  # type: ignore[misc]
            pids = [pid for some in run.read_all_pids().values() for pid in some]
            with (
                memory.Peak(lambda pids=pids: pids, read_memory_mb) as peak,  # type: ignore[misc]
                memory.Peak(lambda pids=pids: pids, read_slots_mb) as in_slots,  # type: ignore[misc]
            ):
                run.finish_undisturbed()
        ours.append(peak.mb / TOTAL)
        slots.append(in_slots.mb / TOTAL)
    return {
        "gangs_mb": format_spread(ours, digits=0),
        "hsdp_mb": format_spread(theirs, digits=0),
        "slots_mb": format_spread(slots, digits=0),
        "gangs_over_hsdp": format_spread([a / b for a, b in zip(ours, theirs, strict=True)], digits=3),
    }


def count_processes(run: ElastaneRun) -> int:
    return sum(map(len, run.read_all_pids().values()))


def read_memory_mb(pid: int) -> float:
    """Return the proportional set size of a process in MB, without slots of gradients."""
    return memory.read_pss_mb(pid) - read_slots_mb(pid)


def read_slots_mb(pid: int) -> float:
    """Return the part of it in slots, its own and those of peers."""
    try:
        lines = Path(f"/proc/{pid}/smaps").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    kilobytes, is_slot = 0, False
    for line in lines:
        if "-" in line.split(" ", 1)[0]:
            is_slot = "elastane-slot" in line
        elif is_slot and line.startswith("Pss:"):
            kilobytes += int(line.split()[1])
    return kilobytes * 1024 / 1e6


# -- death and join ----------------------------------------------------------------------------------------


def measure_death(setting: Setting) -> dict[str, Any]:
    """Kill one process of the newest worker again and again; the agent replaces its worker each time."""
    found: dict[str, list[dict[str, float]]] = {"replaced at once": [], "replaced later": []}
    job = make_job(setting.size, setting.work / "death")
    with train_gangs(job, setting.work / "death-run", WORKERS) as run:
        for way in [*found] * setting.repetitions:
            run.wait_for_members(WORKERS)
            run.wait_for_steps(setting.calm_steps)
            with hold_newcomers(run) if way == "replaced later" else nullcontext():
                found[way].append(death.measure_death(run, setting, VIRTUAL_RANKS))
    keys = ("beyond_work_s", "noticed_s", "to_commit_s", "usual_step_s")
    return {
        way: {key: format_spread([one[key] for one in some], digits=3) for key in keys}
        | {"microbatches_again": [one["recomputed"] for one in some]}
        for way, some in found.items()
    }


@contextmanager
def hold_newcomers(run: ElastaneRun) -> Iterator[None]:
    """Stop each process that the fork server begins, until the context ends."""
    trained = {pid for pids in run.read_all_pids().values() for pid in pids}
    (server,) = {read_parent(pid) for pid in trained}
    held: set[int] = set()
    is_over = threading.Event()

    def hold() -> None:
        while not is_over.wait(LOOK_S):
            pids = {int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()}
            for pid in pids - trained - held:
                with suppress(OSError):
                    if read_parent(pid) == server:
                        os.kill(pid, signal.SIGSTOP)
                        held.add(pid)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        for pid in held:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def read_parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def measure_join(setting: Setting) -> dict[str, str]:
    """Compare the seconds from the request for a second worker to its first step, in turns."""
    out = setting.work / "join"
    out.mkdir()
    file = out / "turn"
    jobs = {name: make_job(setting.size, out / name) for name in ("gang", "worker")}
    blocks.begin_block(file, "gang")
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    with (
        train_gangs(jobs["gang"], out / "gang-run", 1, **blocks.build_environment(file, "gang")) as gang,
        ElastaneRun(
            jobs["worker"],
            out / "worker-run",
            start=1,
            most=WORKERS,
            environment=blocks.build_environment(file, "worker"),
        ) as worker,
    ):
        runs = {"gang": gang, "worker": worker}
        for _ in range(1 + setting.repetitions):
            for name, run in runs.items():
                blocks.begin_block(file, name)
                run.wait_for_members(1)
                run.wait_for_steps(setting.calm_steps)
                asked_s = time.monotonic()
                run.resize(WORKERS)
                seconds[name].append(run.wait_for_members(WORKERS) - asked_s)
                run.resize(1)
                run.wait_for_members(1)
    pairs = list(zip(seconds["gang"], seconds["worker"], strict=True))[1:]
    return {
        "gang_s": format_spread([ours for ours, _ in pairs], digits=3),
        "worker_s": format_spread([theirs for _, theirs in pairs], digits=3),
        "gang_over_worker": format_spread([ours / theirs for ours, theirs in pairs]),
    }


# -- planning ----------------------------------------------------------------------------------------------


def measure_planning(setting: Setting) -> dict[str, Any]:
    """Time the protocol of a worker that joins 63 others, from their statuses to its virtual ranks."""
    layout = lay_out_llama()
    seconds = [time_plan(layout) for _ in range(setting.repetitions)]
    return {
        "blocks": layout.blocks,
        "units": layout.units,
        "plan_ms": format_spread(seconds, scale=1e3, digits=1),
    }


def lay_out_llama() -> Layout:
    """Return the layout of a worker of 8 processes: each has an eighth of the rows of every tensor."""
    square = [(CHANNELS, CHANNELS)] * 4
    layer = [*square, (INNER, CHANNELS), (INNER, CHANNELS), (CHANNELS, INNER), (CHANNELS, 1), (CHANNELS, 1)]
    shapes = [(VOCABULARY, CHANNELS), *layer * LAYERS, (CHANNELS, 1), (VOCABULARY, CHANNELS)]
    shards = [-(-rows // WIDE) * columns for rows, columns in shapes]
    return Layout(
        virtual_ranks=MANY * WIDE,
        blocks=len(cut_blocks([sum(shards)])),
        units=len(shards) + 1,
        # The optimizer of Adam, in fp32.
        unit_bytes=(*(8 * elements for elements in shards), 1),
        together=WIDE,
    )


def time_plan(layout: Layout) -> float:
    members = tuple(Member(worker, "127.0.0.1", 1 + worker) for worker in range(MANY))
    generation = Generation(2, 1, members, planned=True)
    joiner = MemberMachine(MANY - 1, layout)
    everything = find_spans(layout.everything)
    outcome = msgspec.structs.replace(messages.BEGINNING, round=9, step=9)
    heard: list[events.Event] = [
        events.Received(
            worker,
            messages.Status(
                generation=2, worker=worker, committed=9, outcome=outcome, held=everything, keeps=everything
            ),
        )
        for worker in range(MANY - 1)
    ]
    assign_shares.cache_clear()
    began_s = time.perf_counter()
    joiner.handle(events.GenerationProposed(generation))
    joiner.handle(events.RoundEntered("train", layout.virtual_ranks))
    for event in heard:
        joiner.handle(event)
    took_s = time.perf_counter() - began_s
    assert joiner.committed != FRESH, "the joiner knows the round of the others"
    assert len(joiner.round.assigned) == WIDE, "it has its virtual ranks"
    return took_s


MEASUREMENTS: dict[str, Callable[[Setting], dict[str, Any]]] = {
    "step": measure_step,
    "memory": measure_memory,
    "death": measure_death,
    "join": measure_join,
    "planning": measure_planning,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=list(MEASUREMENTS), help="this; may be repeated")
    parser.add_argument("--size", default="10m", help="a key of workload.SIZES")
    parser.add_argument("--memory-size", default="100m", help="a key of workload.SIZES, for the memory")
    parser.add_argument("--repetitions", type=int, default=8)
    options = parser.parse_args()
    exit_on_sigterm()
    for name in options.only or list(MEASUREMENTS):
        with tempfile.TemporaryDirectory(prefix="elastane-gangs-") as folder:
            setting = Setting(
                work=Path(folder),
                repetitions=options.repetitions,
                size=options.size,
                usual={},
                memory=options.memory_size,
                state=options.size,
                calm_steps=8,
            )
            load = os.getloadavg()[0]
            print(json.dumps({name: {"load": round(load, 1), **MEASUREMENTS[name](setting)}}), flush=True)


if __name__ == "__main__":
    main()
