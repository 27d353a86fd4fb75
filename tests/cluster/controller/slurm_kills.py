"""Kill the real controller again and again while jobs on agents under a real Slurm come, grow, shrink and go.

``python slurm_kills.py --kills 200 --seed 1`` exits with 1 and prints the broken promise, if there is one.
The story is that of `agent_kills`, with a job that really trains beside the small ones: it changes its size
all the time, its agents are cancelled now and then, and its bytes must be those of one machine. At the end no
job of Slurm may be left, and none may have been submitted twice.
"""

import argparse
import os
import random
import shlex
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

from agent_kills import KIND, Site, build_member_options, run_story
from controller_kills import (
    PROCESSES,
    expect,
    fork_server,
    print_summary,
    wait_for,
)

import elastane
from elastane.cluster.client.cluster import Cluster
from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.cluster.nouns.config import DeclaredEngine
from elastane.cluster.nouns.job_records import ENDED
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec, WorkerResources
from elastane.cluster.nouns.pools import Pool
from elastane.run.attempts.verification import verify_run
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import read_run

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
sys.path.append(str(ROOT))

from tests.cluster.engines.slurm_daemons import SlurmDaemons, run_slurm  # noqa: E402

SOURCES = str(Path(elastane.__file__).parents[1])
TRAINED, MOST = "trained", 2
SCRIPT = PROCESSES / "scripts" / "training.py"
PAUSE_S = 0.05
STEPS = 200_000
DEVICE = {"partition": "main", "gres": "gpu", "cpusPerDevice": "1"}
OTHERS = {"worker.died", "worker.failed", "worker.hung", "node.lost"}
"""Events that nothing in the story causes."""


def declare_slurm(cluster: Cluster, home: Path, slurm: SlurmDaemons, warm: tuple[str, ...]) -> None:
    """Declare two engines of one Slurm: with small agents, and with real ones for the job that trains."""
    options = {"conf": str(slurm.conf), "answer": "10s"}
    real = [sys.executable, "-P", str(PROCESSES / "warm_main.py"), "elastane.cli.main", "3.0", *warm, "--"]
    environment = f"export OMP_NUM_THREADS=1 PYTHONPATH={shlex.quote(SOURCES)}"
    engines = {
        KIND: build_member_options(home),
        TRAINED: {"command": shlex.join(real), "setup": environment},
    }
    places = {KIND: {"exclude": "n3"}, TRAINED: {"constraint": "three"}}
    for name, more in engines.items():
        cluster.documents.declare(DeclaredEngine(name=name, kind="slurm", options=options | more))
        cluster.documents.declare(
            Pool(name=name, device=name, devices=0, engine=name, options=DEVICE | places[name])
        )


class SlurmSite(Site):
    """A Slurm. A job really trains there, and changes its size all the time.

    Args:
        slurm: in which agents of this job are cancelled now and then.
        warm: the command of its fork servers.
        home: of the controllers.
        seed: of its changes.
    """

    def __init__(self, slurm: SlurmDaemons, warm: tuple[str, ...], home: Path, seed: int) -> None:
        self._slurm, self._warm, self._drawn = slurm, warm, random.Random(seed)
        self._run_dir = EngineDirectories(home).get_run_dir(TRAINED)
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._change)
        self.changes = self.cancelled = 0
        self.failure: BaseException | None = None

    def declare(self, cluster: Cluster, home: Path) -> None:
        declare_slurm(cluster, home, self._slurm, self._warm)

    def begin(self, url: str, token: str) -> None:
        self._cluster = Cluster(url, token, timeout_s=240.0)
        spec = JobSpec(
            name=TRAINED,
            team="t",
            script=str(SCRIPT),
            args=(f"--seconds={PAUSE_S}", f"--steps={STEPS}"),
            env={"PYTHONPATH": SOURCES},
            resources_per_worker=WorkerResources(kinds=(TRAINED,)),
            elastic_policy=ElasticPolicy(min_replicas=1, max_replicas=MOST),
        )
        self._cluster.jobs.submit(spec, key=TRAINED)
        self._thread.start()

    def _change(self) -> None:
        try:
            while not self._enough.wait(self._drawn.uniform(1.0, 4.0)):
                if self._drawn.random() < 0.3 and (agents := self._list_joined()):
                    # One of them: if all left at once, the job would begin again from a checkpoint.
                    self._slurm.run("scancel", self._drawn.choice(agents))
                    self.cancelled += 1
                else:
                    most = self._drawn.randint(1, MOST)
                    self._cluster.jobs.scale(TRAINED, min_replicas=1, max_replicas=most)
                    self.changes += 1
        except BaseException as error:  # noqa: BLE001 - `end` raises it
            self.failure = error

    def _is_varied(self) -> bool:
        run = read_run(self._run_dir)
        return self.cancelled > 0 and {len(line.workers) for line in run.ledger} == {1, MOST}

    def _list_joined(self) -> list[str]:
        """Return the numbers of the jobs of Slurm that train, if another one stays."""
        held = self._cluster.jobs.get(TRAINED).observed.held.get(TRAINED)
        if held is None or held.workers - held.absent < MOST:
            return []
        return self._slurm.run("squeue", "-h", "-t", "RUNNING", "-w", "n3", "-o", "%i").split()

    def end(self) -> None:
        wait_for(lambda: self.failure or self._is_varied(), "the training has grown, and lost an agent")
        self._enough.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure
        self._cluster.jobs.cancel(TRAINED)
        wait_for(lambda: self._cluster.jobs.get(TRAINED).state in ENDED, "the training has ended")

    def look(self, home: Path, cluster: str) -> dict[str, object]:
        job = self._cluster.jobs.get(TRAINED)
        expect(job.state == "cancelled" and job.crashes == 0, f"{TRAINED} is {job.state}: {job.why}")
        run = read_run(self._run_dir)
        problems = verify_run(run).problems
        expect(not problems, f"{TRAINED}: {problems}")
        bad = {event.kind for event in run.events} & OTHERS
        expect(not bad, f"{TRAINED}: {bad}")
        steps = [line.step for line in run.ledger]
        expect(steps == list(range(1, len(steps) + 1)), f"the ledger of {TRAINED} is {steps}")
        alone = train_alone(home / "alone", len(steps))
        expect(
            [line.loss_hex for line in run.ledger] == [line.loss_hex for line in read_run(alone).ledger],
            f"{TRAINED} has other losses than one machine",
        )
        look_at_queue(self._slurm)
        sizes = sorted({len(line.workers) for line in run.ledger})
        return {
            "training": {
                "steps": len(steps),
                "sizes": sizes,
                "generations": run.ledger[-1].generation,
                "changes": self.changes,
                "cancelled": self.cancelled,
            }
        }


def train_alone(folder: Path, steps: int) -> RunDir:
    """Train as many steps with one worker."""
    command = [sys.executable, "-P", "-m", "elastane", "run", "--workers", "1", f"--run-dir={folder}"]
    ended = subprocess.run(
        [*command, str(SCRIPT), f"--steps={steps}"],
        env=os.environ | {"PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
        check=False,
    )
    expect(ended.returncode == 0, f"the run on one machine has failed: {ended.stdout}{ended.stderr}")
    return RunDir(folder)


def look_at_queue(slurm: SlurmDaemons) -> None:
    """Check that no job is left in Slurm, and that no agent has had two that ran."""
    wait_for(lambda: not slurm.run("squeue", "-h"), "no job of Slurm is left")
    listed = slurm.run("squeue", "-h", "-t", "all", "--Format=Name:64,StartTime:32").splitlines()
    begun = Counter(line.split()[0] for line in listed if "N/A" not in line)
    often = {name: count for name, count in begun.items() if count > 1}
    expect(not often, f"jobs of Slurm that began several times: {often}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parsed = parser.parse_args()

    def run(folder: Path) -> dict[str, object]:
        with fork_server(folder) as warm, run_slurm() as slurm:
            site = SlurmSite(slurm, warm, folder / "home", parsed.seed)
            return run_story(f"sqlite:///{folder / 'store.db'}", parsed.kills, parsed.seed, folder, site)

    print_summary(run, f"seed {parsed.seed}")


if __name__ == "__main__":
    main()
