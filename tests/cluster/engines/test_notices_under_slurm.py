"""Notices of every kind to agents of a job under a real Slurm: the job goes on, and no worker dies.

All programs are those of users, without the warm process of the tests: Slurm signals every process of a job.
"""

import os
import random
import signal
import sys
import time
from contextlib import suppress
from math import inf
from pathlib import Path
from statistics import median

import pytest

from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.cluster.engines.slurm.engine import SlurmEngine
from elastane.cluster.engines.slurm.options import SlurmOptions
from elastane.run.attempts.verification import verify_run
from elastane.run.nouns.records import EventLine
from elastane.run.observability.run_files import read_run
from tests.cluster.engines.slurm_daemons import SlurmDaemons, SlurmNotInstalled, run_slurm
from tests.cluster.processes.small_cluster import (
    SOURCES,
    count_members,
    open_cluster,
    read_json,
    submit_training,
)
from tests.run.processes.skipping import skip_except_in_ci
from tests.waiting import WAIT_S, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.alone, pytest.mark.timeout(3600)]

NOTICES, WORKERS = 50, 3
STEPS = 1_000_000
KINDS = ("SIGTERM to all", "SIGTERM to all twice", "SIGUSR1", "scancel", "scancel --batch", "preemption")
POOL = {"partition": "main", "gres": "gpu", "cpusPerDevice": "1"}


@pytest.fixture
def patient_slurm():
    try:
        with run_slurm(kill_wait_s=30) as daemons:
            yield daemons
    except SlurmNotInstalled as error:
        skip_except_in_ci(str(error))


@pytest.fixture
def run_elastane(stage, tmp_path, monkeypatch, patient_slurm):
    options = SlurmOptions(
        command=(sys.executable, "-P", "-m", "elastane"),
        conf=str(patient_slurm.conf),
        answer_s=WAIT_S,
        setup=f"export PYTHONPATH={SOURCES}",
    )
    with open_cluster(
        stage, tmp_path, monkeypatch, open_engine=lambda cluster: SlurmEngine(cluster, options), options=POOL
    ) as run:
        yield run


def list_jobs(slurm: SlurmDaemons) -> list[str]:
    """Return the numbers of the running jobs of Slurm that are agents."""
    rows = slurm.run("squeue", "-h", "-t", "RUNNING", "-p", "main", "-o", "%i").split()
    return sorted(rows, key=int)


def list_processes(job: str) -> list[int]:
    """Return the processes of a job of Slurm; the first one is its batch process, unless it has ended."""
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdecimal() and f"SLURM_JOB_ID={job}".encode() in (
                process / "environ"
            ).read_bytes().split(b"\0"):
                found.append(int(process.name))
    return sorted(found)


def find_agent(job: str) -> int:
    """Return the process of an agent: it alone has the words of the command."""
    for pid in list_processes(job):
        with suppress(OSError):
            if b"\0join\0-\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    raise LookupError(job)


def give_notice(slurm: SlurmDaemons, kind: str, job: str) -> list[str]:
    """Give an agent a notice; return the jobs of Slurm that it makes necessary."""
    match kind:
        case "SIGTERM to all" | "SIGTERM to all twice":
            for _ in range(1 + kind.endswith("twice")):
                for pid in list_processes(job):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGTERM)
        case "SIGUSR1":
            os.kill(find_agent(job), signal.SIGUSR1)
        case "scancel":
            slurm.run("scancel", job)
        case "scancel --batch":
            slurm.run("scancel", "--batch", "--signal=TERM", job)
        case "preemption":
            node = slurm.run("squeue", "-h", "-j", job, "-o", "%N")
            words = ("--partition=urgent", f"--nodelist={node}", "--gres=gpu:2", "--wrap=sleep 600")
            return [slurm.run("sbatch", "--parsable", "--output=/dev/null", *words)]
    return []


def find_machine(event: EventLine) -> str:
    """Return the machine of an event about a worker, as other events name it."""
    return f"node {event.detail['node']}" if event.detail.get("node") else "the first node"


def test_fifty_notices_of_all_kinds_kill_no_worker_and_repeat_no_virtual_rank(
    run_elastane, patient_slurm, tmp_path, stage
):
    slurm, drawn = patient_slurm, random.Random(seed := int.from_bytes(os.urandom(4), "little"))
    submit_training(
        run_elastane, "far", "--workers", str(WORKERS), args=(f"--steps={STEPS}", "--seconds=0.02")
    )
    kinds = [KINDS[number % len(KINDS)] for number in range(NOTICES)]
    drawn.shuffle(kinds)
    took_s: list[float] = []
    for number, kind in enumerate(kinds):
        where = f"seed {seed}, notice {number}: {kind}"
        # All that were asked for have joined, so the notice reaches a machine that trains.
        wait_until(
            lambda: count_members(run_elastane, "far") == WORKERS and len(list_jobs(slurm)) == WORKERS,
            f"all train before {where}",
        )
        job = drawn.choice(list_jobs(slurm))
        began_s = time.monotonic()
        urgent = give_notice(slurm, kind, job)
        wait_until(
            lambda job=job: job not in list_jobs(slurm) and not list_processes(job),
            f"it has left: {where}",
        )
        took_s.append(time.monotonic() - began_s)
        for other in urgent:
            slurm.run("scancel", other)
    run_elastane("cancel", "far", "--wait")
    run = read_run(EngineDirectories(tmp_path / "home").get_run_dir("far"))
    bad = {"worker.failed", "worker.died", "node.lost", "run.resumed"}
    assert not [event for event in run.events if event.kind in bad], seed
    # A worker that has just joined may seem hung while all cores are busy; one with a notice must not die.
    notices = {event.who: event.time for event in run.events if event.kind == "drain.requested"}
    hung = [event for event in run.events if event.kind == "worker.hung"]
    assert not [event for event in hung if event.time > notices.get(find_machine(event), inf)], seed
    assert verify_run(run).problems == ()
    assert [line.step for line in run.ledger] == [*range(1, len(run.ledger) + 1)]
    reference = stage.play(f"--steps={len(run.ledger)}")
    assert [line.loss_hex for line in run.ledger] == [line.loss_hex for line in reference.run.ledger]
    assert read_json(run_elastane, "describe", "far")["crashes"] == 0
    left = [event for event in run.events if event.kind == "node.left"]
    sys.stdout.write(
        f"{NOTICES} notices, {len(left)} machines left, {len(run.ledger)} steps; until all of an agent had "
        f"ended: median {median(took_s):.1f} s, longest {max(took_s):.1f} s\n"
    )
    assert len(left) >= NOTICES
