"""Let the controller and Slurm's own controller be away while a job trains on agents under a real Slurm.

``python slurm_outage.py --seconds 600`` exits with 1 and prints the broken promise, if there is one. One job
trains on two agents all the time; another one ends while both controllers are away; of a third one an agent
dies then. No step may pause, and afterwards every agent and every record must be there, once.
"""

import argparse
import os
import shlex
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from controller_kills import (
    PROCESSES,
    Controllers,
    expect,
    fork_server,
    free_port,
    list_step_intervals,
    make_token,
    print_summary,
    summarize,
    wait_for,
)
from slurm_kills import DEVICE, SOURCES, look_at_queue, run_slurm, train_alone

from elastane.cluster.client.cluster import Cluster
from elastane.cluster.controller.store import agent_rows
from elastane.cluster.controller.store.database import Store
from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.cluster.nouns.config import DeclaredEngine, SchedulingRules
from elastane.cluster.nouns.controller import ControllerSettings
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec, WorkerResources
from elastane.cluster.nouns.pools import Pool
from elastane.run.attempts.verification import verify_run
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import read_run

STEADY, ENDING, BEREFT = "steady", "ending", "bereft"
SCRIPT = PROCESSES / "scripts" / "training.py"
STEP_S = 0.08
KIND = "far"
LONGEST_STEP_S = 1.0
"""A usual step takes 0.1 s; a pause would last as long as the outage."""


class Story:
    """The controllers, the Slurm and the jobs.

    Args:
        folder: for all files.
    """

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._url = f"sqlite:///{folder / 'store.db'}"
        warm = stack.enter_context(fork_server(folder))
        self.slurm = stack.enter_context(run_slurm(kill_wait_s=30))
        operator, submitter = make_token(self._url, "operator", ""), make_token(self._url, "submitter", "t")
        home, port = folder / "home", free_port()
        home.mkdir()
        self._home = home
        wish = ControllerSettings(home=str(home), store=self._url, port=port, devices=1)
        self.controllers = Controllers(wish, folder, ("none",))
        stack.callback(self.controllers.close)
        self.begin_controller()
        address = f"http://127.0.0.1:{port}"
        real = [
            sys.executable,
            "-P",
            str(PROCESSES / "warm_main.py"),
            "elastane.cli.main",
            "3.0",
            *warm,
            "--",
        ]
        options = {
            "conf": str(self.slurm.conf),
            "answer": "10s",
            "command": shlex.join(real),
            "setup": f"export OMP_NUM_THREADS=1 PYTHONPATH={shlex.quote(SOURCES)}",
        }
        with Cluster(address, operator) as cluster:
            cluster.documents.declare(DeclaredEngine(name=KIND, kind="slurm", options=options))
            cluster.documents.declare(Pool(name=KIND, device=KIND, devices=0, engine=KIND, options=DEVICE))
            cluster.documents.set_rules(SchedulingRules(cooldown_s=0.5, min_run_time_s=0.5))
        self._cluster = Cluster(address, submitter, timeout_s=240.0)

    def begin_controller(self) -> None:
        self.controllers.begin()
        self.controllers.wait_until_ready()

    def submit(self, name: str, workers: int, steps: int) -> None:
        spec = JobSpec(
            name=name,
            team="t",
            script=str(SCRIPT),
            args=(f"--seconds={STEP_S / 8 * workers}", f"--steps={steps}"),
            env={"PYTHONPATH": SOURCES},
            resources_per_worker=WorkerResources(kinds=(KIND,)),
            elastic_policy=ElasticPolicy(min_replicas=workers, max_replicas=workers),
        )
        self._cluster.jobs.submit(spec, key=name)

    def locate(self, name: str) -> RunDir:
        return EngineDirectories(self._home).get_run_dir(name)

    def count_members(self, name: str) -> int:
        held = self._cluster.jobs.get(name).observed.held.get(KIND)
        return 0 if held is None else held.workers - held.absent

    def read_state(self, name: str) -> str:
        return self._cluster.jobs.get(name).state

    def cancel(self, name: str) -> None:
        self._cluster.jobs.cancel(name)

    def list_agents(self, name: str) -> list[str]:
        """Return the numbers of the running jobs of Slurm that are agents of a job."""
        rows = self.slurm.run("squeue", "-h", "-t", "RUNNING", "-o", "%i %k").splitlines()
        return [row.split()[0] for row in rows if row.split()[1:] == [name]]

    def list_stored_agents(self, name: str) -> list[int]:
        store = Store(self._url)
        try:
            with store.begin_read() as tx:
                return [agent.number for agent in agent_rows.list_living_agents(tx, name)]
        finally:
            store.close()

    def look(self, name: str) -> None:
        """Check the records of a job that has ended.

        Raises:
            PromiseBroken: a promise is broken.
        """
        run = read_run(self.locate(name))
        problems = verify_run(run).problems
        expect(not problems, f"{name}: {problems}")
        steps = [line.step for line in run.ledger]
        expect(steps == list(range(1, len(steps) + 1)), f"the ledger of {name} is {steps}")
        alone = read_run(train_alone(self._home / f"{name}-alone", len(steps)))
        same = [line.loss_hex for line in run.ledger] == [line.loss_hex for line in alone.ledger]
        expect(same, f"{name} has other losses than one machine")
        expect(self._cluster.jobs.get(name).crashes == 0, f"{name} crashed")


def run_story(folder: Path, seconds: float) -> dict[str, object]:
    """Run the whole story, and return its summary.

    Raises:
        PromiseBroken: a promise is broken.
    """
    with ExitStack() as stack:
        story = Story(stack, folder)
        story.submit(STEADY, 2, 10**6)
        story.submit(BEREFT, 2, 10**6)
        # It has to outlive the wait for its agents, and not the outage.
        story.submit(ENDING, 1, int(seconds / 2 / STEP_S))
        for name, workers in ((STEADY, 2), (BEREFT, 2), (ENDING, 1)):
            wait_for(
                lambda name=name, workers=workers: story.count_members(name) == workers, f"{name} trains"
            )
        agents = {name: story.list_agents(name) for name in (STEADY, BEREFT)}
        stored = story.list_stored_agents(STEADY)
        calm_from_s = time.time()
        time.sleep(5.0)  # not a wait: steps without an outage
        away_from_s = time.time()
        story.controllers.kill()
        with story.slurm.pause("slurmctld"):
            kill_batch_process(agents[BEREFT][-1])
            while time.time() < away_from_s + seconds:
                time.sleep(1.0)  # not a wait: the outage lasts as long as it should
        story.begin_controller()
        back_s = time.time()
        wait_for(lambda: story.read_state(ENDING) == "finished", "the job that ended meanwhile has finished")
        wait_for(lambda: story.count_members(BEREFT) == 2, "another agent takes the place of the dead one")
        expect(story.list_agents(STEADY) == agents[STEADY], "the agents of the steady job have changed")
        expect(story.list_stored_agents(STEADY) == stored, "the controller has asked for more agents")
        expect(len(story.list_agents(BEREFT)) == 2, "an agent is doubled")
        calm = list_step_intervals(story.locate(STEADY), calm_from_s, away_from_s)
        away = list_step_intervals(story.locate(STEADY), away_from_s, back_s)
        expect(len(away) > seconds / STEP_S / 4, f"only {len(away)} steps within the outage")
        expect(
            max(away) < LONGEST_STEP_S + max(calm), f"a step took {max(away):.2f} s, before {max(calm):.2f} s"
        )
        for name in (STEADY, BEREFT):
            story.cancel(name)
            wait_for(lambda name=name: story.read_state(name) == "cancelled", f"{name} has ended")
        look_at_queue(story.slurm)
        for name in (STEADY, BEREFT, ENDING):
            story.look(name)
    return {"seconds away": seconds, "steps before": summarize(calm), "steps meanwhile": summarize(away)}


def kill_batch_process(job: str) -> None:
    """Kill the agent of a job of Slurm, as a machine does that runs out of memory."""
    for process in Path("/proc").iterdir():
        try:
            words = (process / "environ").read_bytes().split(b"\0") if process.name.isdecimal() else []
        except OSError:
            continue
        if f"SLURM_JOB_ID={job}".encode() in words:
            os.kill(int(process.name), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parsed = parser.parse_args()
    print_summary(lambda folder: run_story(folder, parsed.seconds), f"{parsed.seconds:g} s away")


if __name__ == "__main__":
    main()
