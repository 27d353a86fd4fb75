"""The local engine and the pure parts of the controller's loop, with real agents and workers."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import elastane
from elastane.cluster.controller.jobs.lifecycle import JobLifecycle, apply_observation
from elastane.cluster.controller.jobs.reconciliation import choose_order
from elastane.cluster.engines.local.engine import EngineDirectories, LocalEngine
from elastane.cluster.nouns.engine import KillAttempt, Observation, SettleJob, StartAttempt
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec
from elastane.run.agent.presence import is_any_process_present, list_present_processes
from elastane.run.attempts.attempt_file import read_attempt
from elastane.run.attempts.verification import verify_run
from elastane.run.observability.run_files import read_run
from tests.cluster.job_lifecycles import cancel_lifecycle, grant_workers
from tests.run.processes.stage import SCRIPTS, describe_run
from tests.waiting import wait_until_async

pytestmark = pytest.mark.processes

SOURCES = Path(elastane.__file__).parents[1]


def build_spec(name: str = "j", *args: str, script: str = "training.py", **env: str) -> JobSpec:
    return JobSpec(
        name=name,
        team="t",
        script=str(SCRIPTS / script) if "/" not in script else script,
        args=args,
        # The package may not be installed, so the job needs its path.
        env={"PYTHONPATH": str(SOURCES)} | env,
        elastic_policy=ElasticPolicy(max_replicas=4),
    )


def build_impatient_spec(*args: str) -> JobSpec:
    """Return the spec of a job with half a second for each end."""
    spec = build_spec("j", *args)
    policy = msgspec.structs.replace(spec.elastic_policy, graceful_shutdown_timeout_in_seconds=0.5)
    return msgspec.structs.replace(spec, elastic_policy=policy)


class Loop:
    """The controller's loop around one job, without its store and its plan."""

    def __init__(self, engine: LocalEngine, home: Path, spec: JobSpec, workers: int = 1) -> None:
        self.engine = engine
        self.lifecycle = grant_workers(JobLifecycle(job=spec.name, spec=spec), workers, time.time())
        self.run_dir = EngineDirectories(home).get_run_dir(spec.name)
        self.seen = Observation(job=spec.name)

    async def run_cycle(self) -> None:
        self.seen = (await self.engine.observe([self.lifecycle.job]))[self.lifecycle.job]
        self.lifecycle = apply_observation(self.lifecycle, self.seen, time.time())
        order = choose_order(self.lifecycle, self.seen, time.time())
        if order is not None:
            await self.engine.carry_out([order])

    async def wait_until(self, done) -> None:
        async def look() -> bool:
            if done(self):
                return True
            await self.run_cycle()
            return False

        await wait_until_async(look, "the job is as it should be", state=self.describe)

    def describe(self) -> str:
        log = self.run_dir.log("agent")
        output = log.read_text() if log.exists() else ""
        return f"{self.lifecycle}\n{self.seen}\n{output}\n{describe_run(read_run(self.run_dir))}"

    async def wait_for_end(self) -> None:
        await self.wait_until(lambda loop: loop.lifecycle.ended is not None)

    async def wait_for_step(self, step: int) -> None:
        await self.wait_until(lambda loop: loop.seen.progress is not None and loop.seen.progress.step >= step)

    def grant(self, workers: int) -> None:
        self.lifecycle = grant_workers(self.lifecycle, workers, time.time())

    def touch(self, name: str) -> None:
        (self.run_dir.root / name).touch()


@pytest.fixture
def engine(stage, tmp_path) -> Iterator[LocalEngine]:
    warm = stage.build_command("elastane.run.attempts.__main__")
    yield LocalEngine(tmp_path, agent=warm)
    for run_dir in map(EngineDirectories(tmp_path).get_run_dir, EngineDirectories(tmp_path).list_unsettled()):
        for pid in set(list_present_processes(run_dir)) - {os.getpid()}:
            os.kill(pid, signal.SIGKILL)


def assert_verified(loop: Loop) -> None:
    """Assert that the run trained each step, virtual rank and sample once."""
    run = read_run(loop.run_dir)
    assert verify_run(run).problems == (), describe_run(run)
    assert [line.step for line in run.ledger] == list(range(1, len(run.ledger) + 1))


def test_a_job_runs_to_its_end_and_is_settled(engine, tmp_path, play_reference):
    async def drive():
        loop = Loop(engine, tmp_path, build_spec(), workers=2)
        await loop.wait_for_end()
        await loop.run_cycle()
        return loop

    loop = asyncio.run(drive())
    assert loop.lifecycle.ended.how == "finished", loop.lifecycle
    assert (loop.lifecycle.over, loop.lifecycle.crashes, loop.lifecycle.uses) == (1, 0, 0)
    assert EngineDirectories(tmp_path).list_unsettled() == set()
    assert loop.run_dir.report.exists()
    assert loop.run_dir.card.exists()
    assert_verified(loop)
    assert {len(line.workers) for line in read_run(loop.run_dir).ledger} == {2}
    assert loop.seen.progress.step == loop.seen.progress.steps == 30
    assert loop.seen.progress.remaining == 0
    assert dict(loop.seen.progress.speeds)[2] > 0


def test_a_job_sees_only_the_environment_variables_that_it_names(tmp_path, home, monkeypatch):
    """The job starts without the warm process, which has an environment of its own."""
    monkeypatch.setenv("ELASTANE_TOKEN", "the controller's own")
    script = tmp_path / "says.py"
    script.write_text("import os; raise SystemExit(repr(dict(os.environ)))")
    spec = build_spec("j", script=str(script), COLOUR="red; touch /tmp/never")

    async def drive():
        loop = Loop(LocalEngine(tmp_path), tmp_path, spec)
        await loop.wait_for_end()
        return loop

    variables = asyncio.run(drive()).lifecycle.ended.traceback
    assert "'COLOUR': 'red; touch /tmp/never'" in variables
    assert "controller's own" not in variables


def test_an_error_of_the_script_ends_the_job_with_its_traceback(engine, tmp_path):
    script = tmp_path / "wrong.py"
    script.write_text("import elastane\nraise ValueError('no such column')\n")

    async def drive():
        loop = Loop(engine, tmp_path, build_spec("j", script=str(script)))
        await loop.wait_for_end()
        return loop

    ended = asyncio.run(drive()).lifecycle.ended
    assert ended.how == "failed"
    assert "ValueError: no such column" in ended.traceback


def test_a_job_grows_pauses_and_resumes(engine, tmp_path):
    async def drive():
        loop = Loop(engine, tmp_path, build_spec("j", "--paced-from=5", "--steps=60"))
        await loop.wait_for_step(4)
        loop.grant(2)
        await loop.wait_until(lambda loop: loop.seen.workers == 2)
        loop.touch("gates")
        await loop.wait_until(lambda loop: 2 in dict(loop.seen.progress.speeds))
        loop.grant(0)
        assert loop.lifecycle.uses == 2
        await loop.wait_until(lambda loop: loop.lifecycle.uses == 0)
        assert loop.lifecycle.over == 1
        assert not is_any_process_present(loop.run_dir)
        loop.grant(3)
        await loop.wait_for_end()
        return loop

    loop = asyncio.run(drive())
    assert loop.lifecycle.ended.how == "finished", loop.lifecycle
    assert (loop.lifecycle.over, loop.lifecycle.crashes) == (2, 0)
    assert_verified(loop)


def test_a_cancelled_job_leaves_no_process(engine, tmp_path):
    async def drive():
        loop = Loop(engine, tmp_path, build_spec("j", "--seconds=0.01", "--steps=10000"), workers=2)
        await loop.wait_for_step(2)
        loop.lifecycle = cancel_lifecycle(loop.lifecycle, time.time())
        await loop.wait_for_end()
        return loop

    loop = asyncio.run(drive())
    assert loop.lifecycle.ended.how == "cancelled"
    assert list_present_processes(loop.run_dir) == ()


@pytest.mark.parametrize("moment", ["ordered", "living", "answering"])
def test_a_job_that_is_cancelled_while_it_begins_leaves_no_process(engine, tmp_path, moment):
    moments = {
        "ordered": lambda loop: loop.seen.present,
        "living": lambda loop: loop.seen.agent,
        "answering": lambda loop: loop.seen.target is not None,
    }

    async def drive():
        loop = Loop(engine, tmp_path, build_spec("j", "--seconds=0.05", "--steps=10000"), workers=2)
        await loop.wait_until(moments[moment])
        loop.lifecycle = cancel_lifecycle(loop.lifecycle, time.time())
        assert loop.lifecycle.uses == 2
        await loop.wait_for_end()
        return loop

    loop = asyncio.run(drive())
    assert loop.lifecycle.ended.how == "cancelled"
    assert list_present_processes(loop.run_dir) == ()


def test_a_settled_job_leaves_no_zombie(tmp_path):
    pid_file = tmp_path / "pid"
    # This agent gives up its presence before it ends.
    agent = f"""if True:
        import os, pathlib, time
        pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))
        os.closerange(3, 64)
        time.sleep(0.2)
    """
    engine = LocalEngine(tmp_path / "home", agent=(sys.executable, "-c", agent))

    async def drive():
        loop = Loop(engine, tmp_path / "home", build_spec())
        await loop.wait_until(lambda _: pid_file.exists() and not list_present_processes(loop.run_dir))
        await engine.carry_out([SettleJob(job="j")])

    asyncio.run(drive())
    with pytest.raises(ChildProcessError):
        os.waitpid(int(pid_file.read_text()), os.WNOHANG)


def test_a_cancelled_job_that_never_ends_its_step_is_killed_after_the_timeout(engine, tmp_path):
    async def drive():
        loop = Loop(engine, tmp_path, build_impatient_spec("--paced-from=3"))
        await loop.wait_for_step(2)
        loop.lifecycle = cancel_lifecycle(loop.lifecycle, time.time())
        await loop.wait_for_end()
        return loop

    loop = asyncio.run(drive())
    assert loop.lifecycle.ended.how == "cancelled"
    assert list_present_processes(loop.run_dir) == ()


def test_a_worker_that_does_not_leave_in_time_is_killed_and_the_job_trains_on(engine, tmp_path):
    async def drive():
        loop = Loop(engine, tmp_path, build_impatient_spec("--paced-from=5"), workers=2)
        await loop.wait_for_step(4)
        # A worker leaves only at a commit, and the job makes none.
        loop.grant(1)
        await loop.wait_until(lambda loop: loop.lifecycle.uses == 1)
        loop.touch("gates")
        await loop.wait_for_end()
        return loop

    loop = asyncio.run(drive())
    assert loop.lifecycle.ended.how == "finished", loop.lifecycle
    assert (loop.lifecycle.over, loop.lifecycle.crashes) == (1, 0)
    assert any("did not leave in time" in event.why for event in read_run(loop.run_dir).events)
    assert_verified(loop)


def test_the_next_attempt_resumes_a_job_when_its_agent_is_killed(engine, tmp_path):
    async def drive():
        loop = Loop(engine, tmp_path, build_spec("j", "--paced-from=5"), workers=2)
        await loop.wait_for_step(4)
        await engine.carry_out([KillAttempt(job="j", attempt=1)])
        loop.touch("gates")
        await loop.wait_for_end()
        return loop

    loop = asyncio.run(drive())
    assert loop.lifecycle.ended.how == "finished", loop.lifecycle
    assert (loop.lifecycle.over, loop.lifecycle.crashes) == (2, 1)
    assert_verified(loop)


def test_an_agent_that_gets_sigterm_leaves_a_checkpoint_and_the_job_resumes(engine, tmp_path):
    """A machine that shuts down sends SIGTERM to every process; the job has not crashed."""

    async def drive():
        loop = Loop(engine, tmp_path, build_spec("j", "--paced-from=5"), workers=2)
        await loop.wait_for_step(4)
        os.kill(read_attempt(loop.run_dir).pid, signal.SIGTERM)
        loop.touch("gates")
        await loop.wait_for_end()
        return loop

    loop = asyncio.run(drive())
    assert loop.lifecycle.ended.how == "finished", loop.lifecycle
    assert (loop.lifecycle.over, loop.lifecycle.crashes) == (2, 0)
    resumed = read_run(loop.run_dir).record.resumed
    assert resumed.step >= 4
    assert_verified(loop)


def test_a_worker_that_outlives_its_agent_still_holds_its_device(engine, tmp_path):
    async def drive():
        loop = Loop(engine, tmp_path, build_spec("j", "--paced-from=5"), workers=2)
        await loop.wait_for_step(4)
        os.kill(find_worker_pid(loop), signal.SIGSTOP)
        await engine.carry_out([KillAttempt(job="j", attempt=1)])
        await loop.wait_until(lambda loop: not loop.seen.agent)
        await asyncio.sleep(0.5)  # not a wait: its device would be given away meanwhile
        await loop.run_cycle()
        assert loop.seen.present
        assert loop.lifecycle.uses == 2
        assert loop.lifecycle.over == 0
        await engine.carry_out([KillAttempt(job="j", attempt=1)])
        await loop.wait_until(lambda loop: loop.lifecycle.over == 1)
        loop.lifecycle = cancel_lifecycle(loop.lifecycle, time.time())
        await loop.wait_for_end()

    asyncio.run(drive())


def find_worker_pid(loop: Loop) -> int:
    """Return the process of the second worker, which leads the session of those that it starts."""
    return next(
        pid
        for pid in list_present_processes(loop.run_dir)
        if b"worker-1" in read_log_path(pid) and os.getsid(pid) == pid
    )


def read_log_path(pid: int) -> bytes:
    return os.fsencode(Path(f"/proc/{pid}/fd/1").readlink())


def test_an_attempt_begins_once_however_often_and_late_it_is_ordered(engine, tmp_path, stage):
    spec = build_spec()

    async def drive():
        loop = Loop(engine, tmp_path, spec)
        order = StartAttempt(job="j", attempt=1, workers=1, spec=spec)
        others = [LocalEngine(tmp_path, agent=engine._agent) for _ in range(3)]
        await asyncio.gather(*(other.carry_out([order, order]) for other in others))
        await loop.wait_for_end()
        for other in others:
            await other.carry_out([order])
            await other.close()
        return loop

    loop = asyncio.run(drive())
    assert (loop.lifecycle.ended.how, loop.lifecycle.over) == ("finished", 1)
    begun = loop.run_dir.log("agent").read_text().count("attempt 1 begins")
    assert begun == 1
    assert_verified(loop)


def test_an_attempt_that_cannot_be_started_has_failed(engine, tmp_path):
    async def drive(spec):
        loop = Loop(engine, tmp_path, spec)
        await loop.wait_until(lambda loop: loop.lifecycle.over == 1)
        return loop.lifecycle

    lifecycle = asyncio.run(drive(build_spec("a", script=str(tmp_path / "none.py"))))
    assert (lifecycle.ended.how, lifecycle.crashes) == ("failed", 0)
    assert "there is no script" in lifecycle.ended.why
    lifecycle = asyncio.run(
        drive(msgspec.structs.replace(build_spec("b"), script="", command=("sh", "-c", "x")))
    )
    assert lifecycle.ended.how == "failed"
    assert "starts sh" in lifecycle.ended.why
