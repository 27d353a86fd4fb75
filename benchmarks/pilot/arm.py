"""One arm of the pilot: users submit jobs, and events change the cluster, as the scenario says.

Everything goes through the API, except signals to processes. The arm only observes the cluster's reaction.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from elastane.api import reports
from elastane.api.control import AskStatus
from elastane.api.controller_start import ControllerReady
from elastane.api.errors import ElastaneError
from elastane.api.job_records import ENDED
from elastane.api.jobs import JobSpec
from elastane.api.rest import Job
from elastane.api.rundir import RunDir
from elastane.api.tokens import NewToken, Role
from elastane.attempts.attempt_file import read_attempt
from elastane.client.channel import ask
from elastane.client.cluster import Cluster

from pilot.controller import SOURCES, controller
from pilot.recorded import Deed, Look, Recorded
from pilot.scenario import (
    Capacity,
    Happening,
    Kill,
    Price,
    Priority,
    Reserve,
    Scenario,
    Submission,
    reservation,
)
from pilot.slow_device import MICROBATCH_S, TICKS

BENCHMARKS = Path(__file__).parents[1]
ROOT = BENCHMARKS.parent
LOOK_S = 1.0
LONG_S = 86_400.0

Shape = Callable[[JobSpec, int], JobSpec]
"""The spec of a job in an arm, from the scenario's spec and the ideal size."""


def modules() -> str:
    """Return the folders from which the pilot's scripts import."""
    return os.pathsep.join(map(str, (SOURCES, BENCHMARKS, ROOT / "examples")))


def live(scenario: Scenario, name: str, home: Path, shape: Shape, say: Callable[[str], None]) -> Recorded:
    """Play a scenario.

    Args:
        scenario: its jobs and events.
        name: of the arm.
        home: for all files of the arm; it does not exist yet.
        shape: of the arm's jobs.
        say: prints a line of progress.

    Raises:
        ElastaneError: the controller cannot be started or reached, or refuses what the scenario asks for.
        TimeoutError: not all jobs have ended in time.
    """
    with controller(home) as ready:
        return _Arm(scenario, name, home, ready, say).live(shape)


class _Arm:
    def __init__(
        self, scenario: Scenario, name: str, home: Path, ready: ControllerReady, say: Callable[[str], None]
    ) -> None:
        self.scenario, self.name, self.home, self.say = scenario, name, home, say
        self.url = ready.url
        self.operator = Cluster(ready.url, ready.token)
        self.members = {
            team: self.somebody("submitter", team) for team in {job.team for job in scenario.jobs}
        }
        self.reporter = self.somebody("reporter")
        self.began_s = 0.0
        self.looks: list[Look] = []
        self.deeds: list[Deed] = []
        self.jobs: dict[str, Job] = {}

    def somebody(self, role: Role, team: str = "") -> Cluster:
        made = self.operator.make_token(NewToken(user=f"{team or role}-1", role=role, team=team))
        return Cluster(self.url, made.secret)

    @property
    def now_s(self) -> float:
        return time.time() - self.began_s

    def live(self, shape: Shape) -> Recorded:
        scenario = self.scenario
        self.operator.apply(scenario.cluster)
        to_submit = sorted(scenario.jobs, key=lambda job: job.at)
        to_happen = sorted(scenario.happens, key=lambda one: one.at)
        self.began_s = time.time()
        while to_submit or self.unfinished():
            if self.now_s > scenario.timeout_s:
                left = ", ".join(self.unfinished())
                raise TimeoutError(
                    f"{self.name}: after {scenario.timeout_s:g} s these have not ended: {left}"
                )
            # The events of second 0 come before the first job.
            to_happen = [one for one in to_happen if one.at > self.now_s or not self.happen(one)]
            while to_submit and to_submit[0].at <= self.now_s:
                self.submit(to_submit.pop(0), shape)
            self.look()
            time.sleep(LOOK_S)
        return self.recorded()

    def unfinished(self) -> list[str]:
        return [job.name for job in self.jobs.values() if job.state not in ENDED]

    def submit(self, one: Submission, shape: Shape) -> None:
        env = {
            "PYTHONPATH": modules(),
            MICROBATCH_S: str(self.scenario.microbatch_s),
            TICKS: str(self.home / "ticks" / one.name),
        }
        spec = shape(self.scenario.spec(one, ROOT, env), one.ideal)
        self.jobs[one.name] = self.members[one.team].submit(spec)
        self.did("submit", f"{one.team} submits {one.name}", one.name)

    def look(self) -> None:
        at_s, before = self.now_s, dict(self.jobs)
        names = self.unfinished()
        after = self.read(names)
        if any(after[name].grant != before[name].grant for name in names):
            # Some were read before a decision and some after it, so read all of them again.
            after = self.read(names)
        for name, job in after.items():
            self.jobs[name] = job
            granted, held = job.grant.workers, job.observed.held
            uses = {
                pool: max(granted.get(pool, 0), held[pool].workers if pool in held else 0)
                for pool in sorted(granted.keys() | held.keys())
            }
            self.looks.append(
                Look(at_s=at_s, job=name, state=job.state, granted=granted, uses=uses, step=job.step)
            )
            if (job.state, job.grant) != (before[name].state, before[name].grant):
                why = job.why if job.state in ENDED else " ".join(job.explained.sentences[:2])
                self.say(f"{at_s:5.0f} s  {name} {job.state}, {job.workers} workers. {why}")

    def read(self, names: Sequence[str]) -> dict[str, Job]:
        return {name: self.operator.job(name) for name in names}

    def did(self, kind: str, text: str, job: str = "") -> None:
        self.say(f"{self.now_s:5.0f} s  {text}")
        self.deeds.append(Deed(at_s=self.now_s, kind=kind, text=text, job=job))

    def recorded(self) -> Recorded:
        jobs = tuple(self.jobs.values())
        usage = self.operator.usage("job", "pool", from_s=self.began_s, until_s=time.time())
        return Recorded(
            name=self.name,
            home=self.home,
            began_s=self.began_s,
            ended_s=max(job.ended_s or 0.0 for job in jobs) - self.began_s,
            jobs=jobs,
            events=tuple(event for job in jobs for event in self.operator.events(job.name)),
            looks=tuple(self.looks),
            deeds=tuple(self.deeds),
            usage=usage.rows,
            audit=tuple(reversed([*self.operator.audit()])),
        )

    # -- events ------------------------------------------------------------------------------------------

    def happen(self, one: Happening) -> bool:
        """Carry out an event; return False if it is not yet possible."""
        match one.what:
            case Capacity(pool=pool, devices=devices):
                self.reporter.report(reports.Capacity(pool=pool, devices=devices, valid_s=LONG_S))
                self.did("capacity", f"{pool} has {devices} devices")
            case Price(pool=pool, price=price):
                self.reporter.report(reports.Price(pool=pool, price=price, valid_s=LONG_S))
                self.did("price", f"a device of {pool} costs {price:g} an hour")
            case Priority(job=job, priority_class=priority):
                if job in self.unfinished():
                    self.members[self.jobs[job].team].set_priority(job, priority)
                    self.did("priority", f"{job} has priority {priority}", job)
            case Reserve() as wish:
                self.operator.declare(reservation(wish, self.began_s))
                span = f"from second {wish.from_s:g} to {wish.until_s:g}"
                self.did("reserve", f"{wish.devices} devices of {wish.pool} are for {wish.name} {span}")
            case Kill() as wish:
                return self.kill(wish)
        return True

    def kill(self, wish: Kill) -> bool:
        """Kill a process; return True if it is dead, or the job has ended."""
        job = self.jobs.get(wish.job)
        if job is None:
            return False
        if job.state in ENDED:
            return True
        run_dir = RunDir(self.home / "runs" / wish.job)
        if job.state != "running" or job.step < wish.after_step:
            return False
        pid = _agent(run_dir) if wish.process == "agent" else _worker(run_dir)
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        whom = "the agent" if wish.process == "agent" else "a worker"
        self.did("kill", f"SIGKILL for {whom} of {wish.job}", wish.job)
        return True


def _agent(run_dir: RunDir) -> int | None:
    attempt = read_attempt(run_dir)
    return None if attempt is None or attempt.outcome is not None else attempt.pid


def _worker(run_dir: RunDir) -> int | None:
    """Return the youngest of several workers; a single worker would take the whole state with it."""
    try:
        answer = ask(run_dir, AskStatus(), timeout_s=1.0)
    except ElastaneError:
        return None
    members = [row.pid for row in answer.processes if row.role == "worker" and row.state == "member"]
    return members[-1] if len(members) > 1 else None
