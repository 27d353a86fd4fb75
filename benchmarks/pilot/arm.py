"""One arm of the pilot: users submit jobs, and events change the cluster, as the scenario says.

The arm uses the API for all actions except signals to processes, and only observes the cluster's reaction.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import msgspec
from elastane.cluster.client.cluster import Cluster
from elastane.cluster.nouns import pools
from elastane.cluster.nouns.controller import ControllerReady
from elastane.cluster.nouns.job_records import ENDED
from elastane.cluster.nouns.jobs import JobSpec
from elastane.cluster.nouns.rest import Job
from elastane.cluster.nouns.tokens import NewToken, Role
from elastane.common.errors import ElastaneError
from elastane.run.attempts.attempt_file import read_attempt
from elastane.run.connections.coordinator_request import ask_coordinator
from elastane.run.nouns.control import AskStatus, ProcessInfo
from elastane.run.nouns.membership import NodeName
from elastane.run.nouns.rundir import RunDir

from pilot.controller import SOURCES, start_controller
from pilot.record import Action, ArmRecord, Observation
from pilot.scenario import (
    Capacity,
    Kill,
    Price,
    Priority,
    Reached,
    Reserve,
    Scenario,
    ScenarioEvent,
    Submission,
    make_reservation,
)
from pilot.slow_device import MICROBATCH_S, TICKS

BENCHMARKS = Path(__file__).parents[1]
ROOT = BENCHMARKS.parent
LOOK_S = 1.0
LONG_S = 86_400.0

Shape = Callable[[JobSpec, int], JobSpec]
"""The spec of a job in an arm, from the scenario's spec and the ideal size."""


def list_import_paths() -> str:
    """Return the folders from which the pilot's scripts import."""
    return os.pathsep.join(map(str, (SOURCES, BENCHMARKS, ROOT / "examples")))


def play(
    scenario: Scenario,
    name: str,
    home: Path,
    shape: Shape,
    say: Callable[[str], None],
    start: Callable[[Path], AbstractContextManager[ControllerReady]] = start_controller,
    kill_machine: Callable[[NodeName], None] | None = None,
) -> ArmRecord:
    """Play a scenario.

    Args:
        scenario: its jobs and events.
        name: the name of the arm.
        home: the folder of all files of the arm; it does not exist yet.
        shape: turns a spec of the scenario into one of the arm.
        say: prints a line of progress.
        start: starts a controller with its files in a new folder.
        kill_machine: kills a machine of a run; None: all jobs are on this one.

    Raises:
        ElastaneError: the controller does not start, cannot be reached, or refuses an action of the scenario.
        TimeoutError: not all jobs have ended in time.
    """
    with start(home) as ready:
        return _Arm(scenario, name, home, ready, say, kill_machine).play(shape)


class _Arm:
    def __init__(
        self,
        scenario: Scenario,
        name: str,
        home: Path,
        ready: ControllerReady,
        say: Callable[[str], None],
        kill_machine: Callable[[NodeName], None] | None,
    ) -> None:
        self.scenario, self.name, self.home, self.say = scenario, name, home, say
        self.kill_machine = kill_machine
        self.url = ready.url
        self.operator = Cluster(ready.url, ready.token)
        self.members = {
            team: self.make_client("submitter", team) for team in {job.team for job in scenario.jobs}
        }
        self.reporter = self.make_client("reporter")
        self.began_s = 0.0
        self.observations: list[Observation] = []
        self.actions: list[Action] = []
        self.played: list[ScenarioEvent] = []
        self.jobs: dict[str, Job] = {}

    def make_client(self, role: Role, team: str = "") -> Cluster:
        made = self.operator.tokens.make(NewToken(user=f"{team or role}-1", role=role, team=team))
        return Cluster(self.url, made.secret)

    @property
    def now_s(self) -> float:
        return time.time() - self.began_s

    def play(self, shape: Shape) -> ArmRecord:
        scenario = self.scenario
        self.operator.documents.apply(scenario.cluster)
        submissions = sorted(scenario.jobs, key=lambda job: job.at)
        pending_events = sorted(scenario.events, key=lambda one: one.at)
        self.began_s = time.time()
        while submissions or self.list_unfinished():
            if self.now_s > scenario.timeout_s:
                left = ", ".join(self.list_unfinished())
                raise TimeoutError(
                    f"{self.name}: these jobs have not ended after {scenario.timeout_s:g} s: {left}"
                )
            # The events of second 0 come before the first job.
            pending_events = [one for one in pending_events if not self.play_event(one)]
            while submissions and submissions[0].at <= self.now_s:
                self.submit(submissions.pop(0), shape)
            self.observe()
            time.sleep(LOOK_S)
        return self.build_record()

    def list_unfinished(self) -> list[str]:
        return [job.name for job in self.jobs.values() if job.state not in ENDED]

    def submit(self, one: Submission, shape: Shape) -> None:
        env = {
            "PYTHONPATH": list_import_paths(),
            MICROBATCH_S: str(self.scenario.microbatch_s),
            TICKS: str(self.home / "ticks" / one.name),
        }
        spec = shape(self.scenario.make_spec(one, ROOT, env), one.ideal)
        self.jobs[one.name] = self.members[one.team].jobs.submit(spec)
        self.record_action("submit", f"{one.team} submits {one.name}", one.name)

    def observe(self) -> None:
        at_s, before = self.now_s, dict(self.jobs)
        names = self.list_unfinished()
        after = self.read_jobs(names)
        if any(after[name].grant != before[name].grant for name in names):
            # Some jobs were read before a decision and some after it, so read all of them again.
            after = self.read_jobs(names)
        for name, job in after.items():
            self.jobs[name] = job
            granted, held = job.grant.workers, job.observed.held
            uses = {
                pool: max(granted.get(pool, 0), held[pool].workers if pool in held else 0)
                for pool in sorted(granted.keys() | held.keys())
            }
            self.observations.append(
                Observation(at_s=at_s, job=name, state=job.state, granted=granted, uses=uses, step=job.step)
            )
            if (job.state, job.grant) != (before[name].state, before[name].grant):
                why = job.why if job.state in ENDED else " ".join(job.explained.sentences[:2])
                self.say(f"{at_s:5.0f} s  {name} {job.state}, {job.workers} workers. {why}")

    def read_jobs(self, names: Sequence[str]) -> dict[str, Job]:
        return {name: self.operator.jobs.get(name) for name in names}

    def record_action(self, kind: str, text: str, job: str = "") -> None:
        self.say(f"{self.now_s:5.0f} s  {text}")
        self.actions.append(Action(at_s=self.now_s, kind=kind, text=text, job=job))

    def build_record(self) -> ArmRecord:
        jobs = tuple(self.jobs.values())
        usage = self.operator.usage("job", "pool", from_s=self.began_s, until_s=time.time())
        return ArmRecord(
            name=self.name,
            home=self.home,
            began_s=self.began_s,
            ended_s=max(job.ended_s or 0.0 for job in jobs) - self.began_s,
            jobs=jobs,
            events=tuple(event for job in jobs for event in self.operator.jobs.events(job.name)),
            observations=tuple(self.observations),
            actions=tuple(self.actions),
            played=tuple(self.played),
            usage=usage.rows,
            audit=tuple(reversed([*self.operator.audit()])),
        )

    # -- events ------------------------------------------------------------------------------------------

    def play_event(self, one: ScenarioEvent) -> bool:
        """Carry out an event if its time has come; return whether it has happened."""
        due = one.at <= self.now_s and (one.after is None or self.has_reached(one.after))
        if not due or not self.carry_out(one):
            return False
        self.played.append(msgspec.structs.replace(one, at=self.now_s, after=None))
        return True

    def carry_out(self, one: ScenarioEvent) -> bool:
        """Carry out an event; return False if it is not yet possible."""
        match one.what:
            case Capacity(pool=pool, devices=devices):
                self.reporter.report(pools.Capacity(pool=pool, devices=devices, valid_s=LONG_S))
                self.record_action("capacity", f"{pool} has {devices} devices")
            case Price(pool=pool, price=price):
                self.reporter.report(pools.Price(pool=pool, price=price, valid_s=LONG_S))
                self.record_action("price", f"a device of {pool} costs {price:g} an hour")
            case Priority(job=job, priority_class=priority):
                if job in self.list_unfinished():
                    self.members[self.jobs[job].team].jobs.set_priority(job, priority)
                    self.record_action("priority", f"{job} has priority {priority}", job)
            case Reserve() as event:
                self.operator.documents.declare(make_reservation(event, self.began_s))
                span = f"from second {event.from_s:g} to {event.until_s:g}"
                self.record_action(
                    "reserve", f"{event.devices} devices of {event.pool} are for {event.name} {span}"
                )
            case Kill() as event:
                return self.kill(event)
        return True

    def has_reached(self, wanted: Reached) -> bool:
        job = self.jobs.get(wanted.job)
        return job is not None and (job.state in ENDED or job.step >= wanted.step)

    def kill(self, event: Kill) -> bool:
        """Kill a process; return True if it is dead, or the job has ended."""
        job = self.jobs.get(event.job)
        if job is None:
            return False
        if job.state in ENDED:
            return True
        run_dir = RunDir(self.home / "runs" / event.job)
        if job.state != "running":
            return False
        if event.process == "machine":
            return self.end_machine(event, _find_machine(run_dir, event.site))
        is_agent = event.process == "agent"
        pid = _find_agent(run_dir) if is_agent else _find_worker(run_dir)
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        process = "the agent" if is_agent else "a worker"
        self.record_action("kill", f"SIGKILL for {process} of {event.job}", event.job)
        return True

    def end_machine(self, event: Kill, node: NodeName | None) -> bool:
        """Kill a machine of a job; return whether there was one."""
        assert self.kill_machine is not None, "jobs of this pilot have machines of their own"
        if not node:
            return False
        self.kill_machine(node)
        self.record_action("kill", f"SIGKILL for the machine in {event.site} of {event.job}", event.job)
        return True


def _find_agent(run_dir: RunDir) -> int | None:
    attempt = read_attempt(run_dir)
    return None if attempt is None or attempt.outcome is not None else attempt.pid


def _find_worker(run_dir: RunDir) -> int | None:
    """Return the youngest of several workers; None for a single worker, which alone has the state."""
    members = [row.pid for row in _list_members(_list_rows(run_dir))]
    return members[-1] if len(members) > 1 else None


def _find_machine(run_dir: RunDir, site: str) -> NodeName | None:
    """Return the youngest machine with a worker at a site; None: there is no such machine."""
    nodes = [row.node for row in _list_members(_list_rows(run_dir)) if site in row.sites]
    return nodes[-1] if nodes else None


def _list_rows(run_dir: RunDir) -> Sequence[ProcessInfo]:
    """Return the processes of a run; none if its coordinator does not answer."""
    try:
        return ask_coordinator(run_dir, AskStatus(), timeout_s=1.0).processes
    except ElastaneError:
        return ()


def _list_members(rows: Sequence[ProcessInfo]) -> Sequence[ProcessInfo]:
    return [row for row in rows if row.role == "worker" and row.state == "member"]
