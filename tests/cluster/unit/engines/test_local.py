"""The parts of the local engine that need no run."""

import asyncio
import errno
import os
import shutil
import signal
import subprocess
from contextlib import nullcontext

import msgspec
import pytest

from elastane.cluster.controller.jobs.retries import is_permanent
from elastane.cluster.engines.local.accounts import build_job_environment
from elastane.cluster.engines.local.engine import EngineDirectories, LocalEngine
from elastane.cluster.engines.local.job_code import locate_code_archive
from elastane.cluster.engines.local.job_program import make_run_spec
from elastane.cluster.engines.local.preflight import claim_job_run, refuse_run_of_another
from elastane.cluster.nouns.engine import (
    DrainWorker,
    KillAttempt,
    ResizeJob,
    SettleJob,
    StartAttempt,
    StopAttempt,
)
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec, JobTraining
from elastane.common import process_identity
from elastane.common.errors import BadInput, ElastaneError
from elastane.run.agent.presence import hold_presence
from elastane.run.attempts.attempt_file import read_attempt, write_attempt
from elastane.run.attempts.run_directory import claim_run_directory
from elastane.run.machines.joining.code_archive import write_archive
from elastane.run.machines.joining.shipped_code import check_shipped_code, compute_code_digest, list_code
from elastane.run.nouns.attempts import Attempt, AttemptOutcome
from elastane.run.nouns.checkpoint_policy import CheckpointSettings
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import CheckpointPolicy, RunSpec
from tests.full_disk import fill_disk
from tests.waiting import WAIT_S, wait_until

SPEC = JobSpec(
    name="j",
    team="t",
    script="/train.py",
    args=("--lr", "$(rm -rf /)"),
    elastic_policy=ElasticPolicy(min_replicas=2, max_replicas=6),
)
PYTHON = "/opt/python/bin/python3"
OVER = Attempt(
    number=3, pid=1, started=1, began_s=0.0, outcome=AttemptOutcome(code=0, why="all steps are made")
)


@pytest.fixture(autouse=True)
def known_here(tmp_path, monkeypatch) -> None:
    """Give each test its own home for the names of runs."""
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path / "home"))


def test_a_job_has_its_own_variables_and_those_that_every_process_needs() -> None:
    own = {"PATH": "/bin", "HOME": "/home/x", "ELASTANE_TOKEN": "ela_secret", "AWS_SECRET_ACCESS_KEY": "s"}
    assert build_job_environment({"COLOUR": "red", "PATH": "/opt/bin"}, own) == {
        "PATH": "/opt/bin",
        "HOME": "/home/x",
        "COLOUR": "red",
    }


def test_a_run_has_the_limits_and_arguments_of_its_job() -> None:
    run = make_run_spec("17-j", SPEC, PYTHON)
    assert (run.name, run.min_workers, run.max_workers) == ("17-j", 2, 6)
    assert run.args == ("--lr", "$(rm -rf /)")
    assert run.checkpoints is not None


def test_a_run_has_the_training_settings_of_its_job() -> None:
    checkpoints = CheckpointSettings(every="500 steps", at=("epoch",), keep_last=4, keep_best="eval_loss:min")
    training = JobTraining(
        seed=7,
        threads=2,
        virtual_ranks=12,
        convergence="fast",
        copies=2,
        checkpoints=checkpoints,
        preload=("numpy", "json"),
    )
    run = make_run_spec("j", msgspec.structs.replace(SPEC, training=training), PYTHON)
    assert (run.seed, run.threads, run.virtual_ranks, run.convergence, run.copies) == (7, 2, 12, "fast", 2)
    assert run.preload == ("numpy", "json")
    assert run.checkpoints == CheckpointPolicy(
        every_steps=500, each_epoch=True, keep_last=4, keep_best=("eval_loss", "min")
    )


def test_the_limits_of_a_run_are_the_smallest_and_largest_discrete_size() -> None:
    policy = ElasticPolicy(replica_discrete_values=(2, 4, 8))
    run = make_run_spec("j", msgspec.structs.replace(SPEC, elastic_policy=policy), PYTHON)
    assert (run.min_workers, run.max_workers) == (2, 8)


def test_a_relative_script_is_found_in_the_working_directory() -> None:
    run = make_run_spec(
        "j", msgspec.structs.replace(SPEC, script="../train.py", working_dir="/work/x"), PYTHON
    )
    assert run.script == "/work/train.py"


@pytest.mark.parametrize("program", ["python", "python3", "python3.12", PYTHON])
def test_a_command_may_be_python_with_a_script(program) -> None:
    spec = msgspec.structs.replace(SPEC, script="", args=(), command=(program, "/train.py", "-u", "--lr"))
    run = make_run_spec("j", spec, PYTHON)
    assert (run.script, run.args) == ("/train.py", ("-u", "--lr"))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("bash", "-c", "python train.py"), "starts bash"),
        (("/usr/bin/python3", "/train.py"), "starts /usr/bin/python3"),
        (("pythonx", "/train.py"), "starts pythonx"),
        (("python", "-u", "train.py"), "passes -u to python"),
        (("python", "-m"), "passes -m to python"),
        (("python", "-m", "no.such.module"), "there is no Python module no.such.module installed"),
        (("python",), "names no script"),
    ],
)
def test_other_commands_are_refused_with_an_explanation(command, said) -> None:
    spec = msgspec.structs.replace(SPEC, script="", args=(), command=command)
    with pytest.raises(BadInput, match=said) as refused:
        make_run_spec("j", spec, PYTHON)
    assert refused.value.do


def test_a_job_may_be_a_module(tmp_path) -> None:
    package = tmp_path / "recipes"
    package.mkdir()
    (package / "train.py").touch()
    bare = msgspec.structs.replace(SPEC, script="", args=(), working_dir=str(tmp_path))
    for spec in (
        msgspec.structs.replace(bare, module="recipes.train", args=("--lr",)),
        msgspec.structs.replace(bare, command=("python", "-m", "recipes.train", "--lr")),
    ):
        run = make_run_spec("j", spec, PYTHON)
        assert (run.script, run.module) == (str(package / "train.py"), "recipes.train")
        assert run.program == ("-m", "recipes.train", "--lr")


def test_a_relative_script_without_a_working_directory_is_refused() -> None:
    with pytest.raises(BadInput, match=r"job j names the script train\.py"):
        make_run_spec("j", msgspec.structs.replace(SPEC, script="train.py"), PYTHON)


def test_an_unknown_job_is_observed_as_absent(tmp_path) -> None:
    seen = asyncio.run(LocalEngine(tmp_path).observe(["j"]))["j"]
    assert (seen.attempt, seen.present, seen.agent, seen.outcome) == (0, False, False, None)


def test_jobs_of_an_earlier_engine_are_observed_without_being_named(tmp_path) -> None:
    places = EngineDirectories(tmp_path)
    places.mark_unsettled("old")
    places.get_run_dir("old").logs.mkdir(parents=True)
    places.get_run_dir("old").presence.touch()
    write_attempt(places.get_run_dir("old"), OVER)
    engine = LocalEngine(tmp_path)
    seen = asyncio.run(engine.observe([]))
    assert seen["old"].attempt == 3
    assert seen["old"].outcome == OVER.outcome
    assert asyncio.run(engine.carry_out([SettleJob(job="old")])) == {}
    assert asyncio.run(engine.observe([])) == {}


def test_a_damaged_job_does_not_hide_other_jobs(tmp_path) -> None:
    for job in ("good", "bad"):
        places = EngineDirectories(tmp_path)
        places.get_run_dir(job).logs.mkdir(parents=True)
        places.get_run_dir(job).presence.touch()
        write_attempt(places.get_run_dir(job), OVER)
    places.get_run_dir("bad").attempt.write_bytes(b"{")
    seen = asyncio.run(LocalEngine(tmp_path).observe(["good", "bad"]))
    assert (seen["good"].attempt, seen["bad"].attempt) == (3, 0)


def damage(how: str, run_dir: RunDir) -> None:
    match how:
        case "ledger" | "events" | "attempt" | "presence" | "run":
            path = getattr(run_dir, how)
            path.unlink(missing_ok=True)
            path.mkdir()
        case "gone":
            shutil.rmtree(run_dir.root)
        case "a file":
            shutil.rmtree(run_dir.root)
            run_dir.root.touch()
        case "a loop":
            shutil.rmtree(run_dir.root)
            run_dir.root.symlink_to(run_dir.root)


@pytest.mark.parametrize(
    "how", ["ledger", "events", "attempt", "presence", "run", "gone", "a file", "a loop"]
)
@pytest.mark.parametrize("known", [False, True])
def test_an_unreadable_run_directory_does_not_affect_other_jobs(tmp_path, how, known) -> None:
    places = EngineDirectories(tmp_path / "home")
    for job in ("good", "bad"):
        places.get_run_dir(job).logs.mkdir(parents=True)
        places.get_run_dir(job).presence.touch()
        write_attempt(places.get_run_dir(job), OVER)
    (tmp_path / "train.py").touch()
    spec = msgspec.structs.replace(SPEC, script=str(tmp_path / "train.py"))
    engine = LocalEngine(tmp_path / "home", agent=("/no/such/agent",))

    async def story():
        if known:
            await engine.observe(["good", "bad"])
        damage(how, places.get_run_dir("bad"))
        seen = await engine.observe(["good", "bad"])
        orders = (
            StartAttempt(job="bad", attempt=4, workers=1, spec=spec),
            KillAttempt(job="bad", attempt=seen["bad"].attempt),
        )
        for order in orders:
            await engine.carry_out([order, SettleJob(job="good")])
        return seen

    seen = asyncio.run(story())
    assert (seen["good"].attempt, seen["good"].present) == (3, False)
    # A job that cannot be observed as absent still has its devices.
    assert seen["bad"].present == (how == "presence")


def test_an_attempt_that_cannot_be_read_for_a_moment_has_not_crashed(tmp_path, monkeypatch) -> None:
    run_dir = EngineDirectories(tmp_path).get_run_dir("j")
    run_dir.logs.mkdir(parents=True)
    run_dir.presence.touch()
    write_attempt(run_dir, msgspec.structs.replace(OVER, outcome=None))
    engine = LocalEngine(tmp_path)

    def observe():
        return asyncio.run(engine.observe(["j"]))["j"]

    assert (observe().attempt, observe().present) == (3, False)
    write_attempt(run_dir, OVER)
    with monkeypatch.context() as patched:
        patched.setattr("elastane.cluster.engines.run_line.read_attempt", fail_without_descriptors)
        assert observe().present
    assert (observe().present, observe().outcome) == (False, OVER.outcome)


def fail_without_descriptors(_run_dir: RunDir) -> Attempt:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_an_agent_that_ended_at_once_is_reported_even_if_its_log_is_gone(tmp_path) -> None:
    (tmp_path / "train.py").touch()
    engine = LocalEngine(tmp_path / "home", agent=("false",), own=os.environ)
    spec = msgspec.structs.replace(SPEC, script=str(tmp_path / "train.py"))
    asyncio.run(engine.carry_out([StartAttempt(job="j", attempt=1, workers=1, spec=spec)]))
    shutil.rmtree(tmp_path / "home" / "runs" / "j")
    outcome = wait_until(lambda: asyncio.run(engine.observe(["j"]))["j"].outcome, "the attempt has ended")
    assert "exit code 1" in outcome.why


def test_processes_without_a_readable_attempt_are_killed(tmp_path) -> None:
    """Otherwise they would keep their devices for ever."""
    run_dir = EngineDirectories(tmp_path).get_run_dir("j")
    run_dir.logs.mkdir(parents=True)
    presence = hold_presence(run_dir)
    stuck = subprocess.Popen(["sleep", "600"], pass_fds=(presence,))
    os.close(presence)
    engine = LocalEngine(tmp_path)

    async def story():
        seen = (await engine.observe(["j"]))["j"]
        assert (seen.attempt, seen.present, seen.agent) == (0, True, False)
        return await engine.carry_out([KillAttempt(job="j", attempt=seen.attempt)])

    try:
        assert asyncio.run(story()) == {}
        assert stuck.wait(WAIT_S) == -signal.SIGKILL
    finally:
        stuck.kill()
        stuck.wait()


def test_an_agent_without_its_directory_is_present_until_it_ends(tmp_path) -> None:
    """Otherwise other jobs would get its devices, or the same attempt would begin beside it."""
    run_dir = EngineDirectories(tmp_path).get_run_dir("j")
    run_dir.logs.mkdir(parents=True)
    presence = hold_presence(run_dir)
    agent = subprocess.Popen(["sleep", "600"], pass_fds=(presence,))
    os.close(presence)
    write_attempt(
        run_dir,
        Attempt(number=3, pid=agent.pid, started=process_identity.read_start_time(agent.pid), began_s=0.0),
    )
    engine = LocalEngine(tmp_path)

    async def story():
        before = (await engine.observe(["j"]))["j"]
        shutil.rmtree(run_dir.root)
        after = (await engine.observe(["j"]))["j"]
        assert (after.attempt, after.present, after.agent) == (before.attempt, True, True)
        refused = await engine.carry_out([KillAttempt(job="j", attempt=3)])
        agent.wait(WAIT_S)
        return refused, (await engine.observe(["j"]))["j"]

    try:
        refused, seen = asyncio.run(story())
        assert (refused, seen.attempt, seen.present) == ({}, 0, False)
    finally:
        agent.kill()
        agent.wait()


def test_a_job_does_not_continue_a_run_of_the_same_name(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path))
    script = tmp_path / "train.py"
    script.touch()
    with claim_run_directory(
        RunSpec(name="j", script=str(script)), EngineDirectories(tmp_path).get_run_dir("j").root
    ):
        pass
    engine = LocalEngine(tmp_path)
    order = StartAttempt(
        job="j", attempt=1, workers=1, spec=msgspec.structs.replace(SPEC, script=str(script))
    )
    refused = asyncio.run(engine.carry_out([order]))
    assert "holds a run of another job" in refused["j"]
    outcome = asyncio.run(engine.observe(["j"]))["j"].outcome
    assert outcome is not None
    assert is_permanent(outcome)
    assert "another name" in outcome.why


def test_a_job_does_not_continue_a_job_of_the_same_name_from_another_store(tmp_path, monkeypatch) -> None:
    """The earlier job had finished, so the new one would count as finished at once."""
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path))
    (tmp_path / "train.py").touch()
    run_dir = EngineDirectories(tmp_path).get_run_dir("j")
    with claim_run_directory(RunSpec(name="j", script=str(tmp_path / "train.py")), run_dir.root):
        run_dir.presence.touch()
        write_attempt(run_dir, msgspec.structs.replace(OVER, began_s=99.0))
    spec = msgspec.structs.replace(SPEC, script=str(tmp_path / "train.py"))
    order = StartAttempt(job="j", attempt=1, workers=1, spec=spec, submitted_s=100.0)

    def start(submitted_s):
        engine = LocalEngine(tmp_path)
        asyncio.run(engine.carry_out([msgspec.structs.replace(order, submitted_s=submitted_s)]))
        return asyncio.run(engine.observe(["j"]))["j"]

    assert "holds a run of another job" in start(100.0).outcome.why
    assert is_permanent(start(100.0).outcome)
    # The store is an older backup: this job has begun, and has been settled, since.
    assert start(98.0).outcome == OVER.outcome


@pytest.mark.parametrize(
    ("attempt", "events", "is_claimed", "is_own"),
    [
        # Claimed for the job, which has not begun; or by `elastane run`, which records no attempt.
        (None, False, True, True),
        (None, True, True, False),
        (None, False, False, False),
        (Attempt(number=1, pid=1, started=1, began_s=101.0), True, False, True),
        (Attempt(number=1, pid=1, started=1, began_s=99.0), True, True, False),
    ],
)
def test_a_job_continues_only_a_run_that_was_started_for_it(
    tmp_path, attempt, events, is_claimed, is_own
) -> None:
    run_dir = RunDir(tmp_path)
    refuse_run_of_another(run_dir, attempt, 100.0, is_claimed=is_claimed)
    run_dir.run.touch()
    if events:
        run_dir.events.touch()
    with nullcontext() if is_own else pytest.raises(BadInput, match="holds a run of another job"):
        refuse_run_of_another(run_dir, attempt, 100.0, is_claimed=is_claimed)


def test_a_directory_that_a_live_run_holds_is_claimed_later(tmp_path, monkeypatch) -> None:
    """The job itself is sound, so it must not fail for good."""
    monkeypatch.setattr("elastane.run.attempts.run_directory.LOCK_CHECK_S", 0.0)
    run = RunSpec(name="j", script=str(tmp_path / "train.py"))
    with claim_run_directory(run, tmp_path / "run") as run_dir:
        run_dir.run.unlink()
        with pytest.raises(ElastaneError, match="in use by a live run") as refused:
            claim_job_run(run_dir, run)
    assert not isinstance(refused.value, BadInput)
    claim_job_run(run_dir, run)
    assert run_dir.run.exists()


@pytest.mark.parametrize("where", [{"script": "/\ud800.py"}, {"env": {"WHO": "\ud800"}}])
def test_a_job_that_cannot_be_encoded_does_not_stop_other_jobs_from_starting(tmp_path, where) -> None:
    """Such as a name beyond ASCII if the locale of the controller is C; its cycles failed for all jobs."""
    (tmp_path / "train.py").touch()
    good = msgspec.structs.replace(SPEC, script=str(tmp_path / "train.py"))
    bad = msgspec.structs.replace(good, **where)
    engine = LocalEngine(tmp_path / "home", agent=("false",))
    starts = [
        StartAttempt(job=job, attempt=1, workers=1, spec=spec) for job, spec in (("bad", bad), ("good", good))
    ]
    refused = asyncio.run(engine.carry_out(starts))
    assert list(refused) == ["bad"]
    assert "can't encode" in refused["bad"]
    wait_until(lambda: asyncio.run(engine.observe(["good"]))["good"].outcome, "the attempt has ended")


def test_on_a_full_disk_an_attempt_is_refused_and_does_not_count_as_a_crash(
    tmp_path, make_small_disk
) -> None:
    (tmp_path / "train.py").touch()
    spec = msgspec.structs.replace(SPEC, script=str(tmp_path / "train.py"))
    home = make_small_disk(1 << 20)
    engine = LocalEngine(home, agent=("false",))

    def start(attempt):
        return asyncio.run(engine.carry_out([StartAttempt(job="j", attempt=attempt, workers=1, spec=spec)]))

    def has_ended(attempt):
        seen = asyncio.run(engine.observe(["j"]))["j"]
        return seen.attempt == attempt and seen.outcome is not None

    assert start(1) == {}
    wait_until(lambda: has_ended(1), "the first attempt has ended")
    ballast = fill_disk(home)
    assert "No space left" in start(2)["j"]
    assert not has_ended(2)
    ballast.unlink()
    assert start(2) == {}
    wait_until(lambda: has_ended(2), "the second attempt has ended")


def start_and_observe(home, spec, *, attempt=1):
    """Order an engine to start an attempt, and return its observation."""
    engine = LocalEngine(home)
    asyncio.run(engine.carry_out([StartAttempt(job="j", attempt=attempt, workers=1, spec=spec)]))
    return asyncio.run(engine.observe(["j"]))["j"]


@pytest.mark.parametrize(
    ("script", "working_dir", "said"),
    [
        ("none.py", "", "there is no script"),
        ("train.py/none.py", "", "there is no script"),
        ("pipe", "", "is not a file"),
        (".", "", "is not a file"),
        ("x" * 300, "", "File name too long"),
        ("train.py", "none", "there is no working directory"),
        ("train.py", "train.py", "is not a directory"),
    ],
)
@pytest.mark.parametrize("attempt", [1, 2])
def test_a_job_that_can_never_start_fails_at_once(tmp_path, script, working_dir, said, attempt) -> None:
    (tmp_path / "train.py").touch()
    os.mkfifo(tmp_path / "pipe")
    where = str(tmp_path / working_dir) if working_dir else ""
    spec = msgspec.structs.replace(SPEC, script=str(tmp_path / script), working_dir=where)
    seen = start_and_observe(tmp_path / "home", spec, attempt=attempt)
    assert (seen.attempt, seen.present) == (attempt, False)
    assert is_permanent(seen.outcome)
    assert said in seen.outcome.why
    assert "do:" in seen.outcome.why


@pytest.fixture
def shipped(tmp_path):
    """Return a job that has brought code with it, and the archive that the controller keeps of it."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "train.py").write_text("")
    archive = locate_code_archive(tmp_path / "home", compute_code_digest(root, list_code(root)))
    archive.parent.mkdir(parents=True)
    with archive.open("wb") as file:
        digest = write_archive(root, list_code(root), file)
    return msgspec.structs.replace(SPEC, script="train.py", code=digest), archive


def test_an_attempt_replaces_a_copy_of_the_code_that_was_changed(tmp_path, shipped) -> None:
    spec, _ = shipped
    run_dir = EngineDirectories(tmp_path / "home").get_run_dir("j")
    copy = run_dir.root / "code" / spec.code
    for attempt in (1, 2):
        engine = LocalEngine(tmp_path / "home", agent=("true",))
        order = StartAttempt(job="j", attempt=attempt, workers=1, spec=spec)
        assert asyncio.run(engine.carry_out([order])) == {}
        asyncio.run(engine.carry_out([SettleJob(job="j")]))
        engine._directories.mark_unsettled("j")
        check_shipped_code(run_dir, spec.code)
        (copy / "train.py").unlink()
        (copy / "train.py").write_text("changed = True")
        (copy / "results.csv").touch()
    assert (copy / "results.csv").exists()


def test_a_job_without_its_code_fails_at_once(tmp_path, shipped) -> None:
    spec, archive = shipped
    missing = msgspec.structs.replace(spec, script="none.py")
    outcome = start_and_observe(tmp_path / "home", missing).outcome
    assert is_permanent(outcome)
    assert "there is no script" in outcome.why
    assert "correct this in the code" in outcome.why
    shutil.rmtree(tmp_path / "home" / "runs")
    archive.write_bytes(archive.read_bytes()[:-9])
    assert "is damaged: it ends too early" in start_and_observe(tmp_path / "home", spec).outcome.why
    archive.unlink()
    outcome = start_and_observe(tmp_path / "home", spec).outcome
    assert is_permanent(outcome)
    assert f"archive of the code {spec.code} is missing" in outcome.why
    assert "--ship-code" in outcome.why


def test_an_impossible_environment_fails_at_once(tmp_path) -> None:
    (tmp_path / "train.py").touch()
    spec = msgspec.structs.replace(SPEC, script=str(tmp_path / "train.py"), env={"TABLE": "x" * 200_000})
    outcome = start_and_observe(tmp_path / "home", spec).outcome
    assert is_permanent(outcome)
    assert "its env is larger than the kernel allows" in outcome.why


@pytest.mark.parametrize("shut", ["train.py", "here"])
def test_a_script_or_folder_without_permission_fails_at_once(tmp_path, monkeypatch, shut) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "here").mkdir()
    # Tests may run as root, which may access everything.
    monkeypatch.setattr(os, "access", lambda path, _right: path.name != shut)
    spec = msgspec.structs.replace(
        SPEC, script=str(tmp_path / "train.py"), working_dir=str(tmp_path / "here")
    )
    outcome = start_and_observe(tmp_path / "home", spec).outcome
    assert is_permanent(outcome)
    assert "by the user of its engine" in outcome.why


@pytest.mark.parametrize("kind", [ResizeJob, DrainWorker, StopAttempt, KillAttempt])
def test_an_order_for_another_attempt_does_nothing(tmp_path, kind) -> None:
    more = {ResizeJob: {"workers": 2, "limits": (1, 4)}, DrainWorker: {"worker": 0}}.get(kind, {})
    refused = asyncio.run(LocalEngine(tmp_path).carry_out([kind(job="j", attempt=1, **more)]))
    assert refused == {"j": "attempt 1 is not running"}


def test_a_written_attempt_is_read_back(tmp_path) -> None:
    run_dir = EngineDirectories(tmp_path).get_run_dir("j")
    run_dir.root.mkdir(parents=True)
    assert read_attempt(run_dir) is None
    write_attempt(run_dir, OVER)
    assert read_attempt(run_dir) == OVER
    run_dir.attempt.write_bytes(b"{")
    with pytest.raises(BadInput, match="damaged"):
        read_attempt(run_dir)
