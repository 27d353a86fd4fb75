"""A job can write into its run directory; hostile files there harm only the job itself."""

import asyncio
import logging
import os
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from elastane.cluster.engines.local.engine import EngineDirectories, LocalEngine
from elastane.cluster.engines.run_line import RunLine, WorkerCounts, count_workers
from elastane.cluster.nouns.engine import KillAttempt, StartAttempt
from elastane.cluster.nouns.jobs import JobSpec
from elastane.common import process_identity
from elastane.common.bounds import LARGEST_COUNT
from elastane.run.agent.presence import hold_presence, is_any_process_present
from elastane.run.attempts.attempt_file import read_attempt, write_attempt
from elastane.run.nouns.attempts import Attempt, AttemptOutcome
from elastane.run.nouns.control import Answer, ProcessInfo
from elastane.run.nouns.records import EventLine, LedgerLine, Samples
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunRecord, RunSpec
from tests.hostile import STAND_INS, damaged_documents, replace_with_stand_in
from tests.pinned import SMALL_RUN
from tests.waiting import WAIT_S, wait_until

OVER = Attempt(
    number=3, pid=1, started=1, began_s=0.0, outcome=AttemptOutcome(code=0, why="all steps are made")
)
LINE = LedgerLine(
    step=7,
    generation=1,
    workers={0: ((0, 2),), 1: ((2, 4),)},
    samples=Samples(0, 0, 64, 64, "0"),
    loss=0.5,
    loss_hex=(0.5).hex(),
    time=1_800_000_000.0,
    seconds={"step": 0.5},
)
EVENTS = (
    EventLine(time=1.0, kind="checkpoint.saved"),
    EventLine(time=2.0, kind="generation.started", pause_ms={0: 3.0}, pause_steps={0: 0.1}),
)
RECORD = RunRecord(
    spec=RunSpec(name="j", script="/train.py"),
    created="",
    pinned=msgspec.structs.replace(
        SMALL_RUN, virtual_ranks=4, global_batch=64, microbatch=16, dataset_length=640, steps=100
    ),
)
FILES = ("run", "attempt", "ledger", "events", "presence", "lock", "endpoint", "secret")


def write_run(run_dir: RunDir) -> RunDir:
    """Write the files of a run after its seventh step."""
    run_dir.logs.mkdir(parents=True)
    run_dir.presence.touch()
    run_dir.run.write_bytes(msgspec.json.encode(RECORD))
    run_dir.ledger.write_bytes(msgspec.json.encode(LINE) + b"\n")
    run_dir.events.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in EVENTS))
    write_attempt(run_dir, OVER)
    return run_dir


def observe(engine: LocalEngine, *jobs: str):
    async def story():
        async with asyncio.timeout(20):
            return await engine.observe(jobs)

    return asyncio.run(story())


def test_a_file_of_one_job_cannot_hide_another_job(tmp_path_factory, caplog) -> None:
    @settings(max_examples=25)
    @given(file=st.sampled_from(FILES), stand_in=st.sampled_from(sorted(STAND_INS)))
    def observe_beside(file, stand_in):
        home = tmp_path_factory.mktemp("home")
        places = EngineDirectories(home)
        bad = write_run(places.get_run_dir("bad"))
        write_run(places.get_run_dir("good"))
        replace_with_stand_in(getattr(bad, file), stand_in)
        engine = LocalEngine(home)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                good = observe(engine, "bad", "good")["good"]
        assert (good.attempt, good.progress.step, good.outcome) == (3, 7, OVER.outcome)
        assert good.progress.steps == 100
        # Each file is complained about once, not at every look.
        assert len(caplog.messages) == len(set(caplog.messages)) <= 2

    observe_beside()


@settings(max_examples=8)
@given(
    file=st.sampled_from(["attempt", "presence"]),
    stand_in=st.sampled_from([*STAND_INS, "a link to another job's"]),
)
@example(file="presence", stand_in="a link to another job's")
def test_a_job_with_unreadable_files_is_absent_after_a_kill(tmp_path_factory, file, stand_in) -> None:
    """Otherwise it would keep its devices for ever, and could not be cancelled."""
    home = tmp_path_factory.mktemp("home")
    run_dir = write_run(EngineDirectories(home).get_run_dir("bad"))
    other = write_run(EngineDirectories(home).get_run_dir("other"))
    there = hold_presence(other)
    try:
        if stand_in in STAND_INS:
            replace_with_stand_in(getattr(run_dir, file), stand_in)
        else:
            getattr(run_dir, file).unlink()
            getattr(run_dir, file).symlink_to(getattr(other, file))
        engine = LocalEngine(home)
        seen = observe(engine, "bad")["bad"]
        asyncio.run(engine.carry_out([KillAttempt(job="bad", attempt=seen.attempt)]))
        assert not observe(engine, "bad")["bad"].present
        assert is_any_process_present(other)
    finally:
        os.close(there)


def test_only_processes_of_the_job_itself_are_killed(tmp_path) -> None:
    """The job names a foreign process as its agent, such as that of another job or the controller."""
    run_dir = write_run(EngineDirectories(tmp_path).get_run_dir("bad"))
    other = write_run(EngineDirectories(tmp_path).get_run_dir("other"))
    presence = hold_presence(other)
    stranger = subprocess.Popen(["sleep", "600"], pass_fds=(presence,))
    os.close(presence)
    try:
        begun = process_identity.read_start_time(stranger.pid)
        write_attempt(run_dir, Attempt(number=3, pid=stranger.pid, started=begun, began_s=0.0))
        run_dir.presence.unlink()
        run_dir.presence.symlink_to(other.presence)
        engine = LocalEngine(tmp_path)
        seen = observe(engine, "bad")["bad"]
        assert not seen.agent
        asyncio.run(engine.carry_out([KillAttempt(job="bad", attempt=seen.attempt)]))
        assert not observe(engine, "bad")["bad"].present
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_processes_of_a_job_without_its_presence_file_are_killed_too(tmp_path) -> None:
    run_dir = write_run(EngineDirectories(tmp_path).get_run_dir("bad"))
    presence = hold_presence(run_dir)
    process = subprocess.Popen(["sleep", "600"], pass_fds=(presence,))
    os.close(presence)
    try:
        engine = LocalEngine(tmp_path)
        replace_with_stand_in(run_dir.presence, "a pipe")
        seen = observe(engine, "bad")["bad"]
        assert seen.present
        asyncio.run(engine.carry_out([KillAttempt(job="bad", attempt=seen.attempt)]))
        assert process.wait(WAIT_S) == -signal.SIGKILL
        asyncio.run(engine.carry_out([KillAttempt(job="bad", attempt=seen.attempt)]))
        assert not observe(engine, "bad")["bad"].present
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("place", [".room", "presence", "logs", "logs/agent.log"])
def test_starting_an_attempt_does_not_write_through_links_of_the_job(tmp_path, place) -> None:
    run_dir = write_run(EngineDirectories(tmp_path / "home").get_run_dir("bad"))
    EngineDirectories(tmp_path / "home").mark_unsettled("bad")
    folder = tmp_path / "somebody's"
    folder.mkdir()
    victim = folder / "agent.log"
    victim.write_text("mine")
    here = run_dir.root / place
    here.rmdir() if here.is_dir() else here.unlink(missing_ok=True)
    here.symlink_to(folder if place == "logs" else victim)
    script = tmp_path / "train.py"
    script.touch()
    engine = LocalEngine(tmp_path / "home", agent=("/bin/false",))
    order = StartAttempt(
        job="bad", attempt=4, workers=1, spec=JobSpec(name="bad", team="t", script=str(script))
    )
    refused = asyncio.run(engine.carry_out([order]))
    assert victim.read_text() == "mine"
    assert bool(refused) == (place != ".room")
    wait_until(
        lambda: refused or "exit code 1" in observe(engine, "bad")["bad"].outcome.why, "the attempt has ended"
    )


def test_impossible_targets_of_a_hostile_coordinator_are_ignored() -> None:
    worker = ProcessInfo(role="worker", pid=1, state="")
    assert count_workers(Answer(ok=True, target=2, processes=(worker,))).target == 2
    for target in (2**63, 10**7, -1):
        assert count_workers(Answer(ok=True, target=target, processes=(worker,))) == WorkerCounts()


fuzz = settings(max_examples=150, derandomize=True, suppress_health_check=list(HealthCheck))


@fuzz
@given(
    line=damaged_documents(msgspec.json.encode(LINE)),
    event=damaged_documents(msgspec.json.encode(EVENTS[1])),
    saved=damaged_documents(msgspec.json.encode(EVENTS[0])),
    record=damaged_documents(msgspec.json.encode(RECORD)),
)
def test_progress_from_hostile_files_is_finite_and_within_bounds(
    tmp_path_factory, line, event, record, saved
) -> None:
    run_dir = write_run(EngineDirectories(tmp_path_factory.mktemp("run")).get_run_dir("j"))
    run_dir.run.write_bytes(record)
    with run_dir.ledger.open("ab") as file:
        file.write((line + b"\n") * 2 + msgspec.json.encode(LINE) + b"\n" + line + b"\n")
    with run_dir.events.open("ab") as file:
        file.write(event + b"\n" + saved + b"\n")
    progress = RunLine(run_dir).read_progress()
    assert 0 <= progress.step <= 10**12
    assert 0 <= progress.samples_per_step <= LARGEST_COUNT
    assert all(0 <= speed < 1e16 and workers for workers, speed in progress.speeds)
    assert progress.remaining is None or 0 <= progress.remaining <= 10**21
    assert progress.resize_s is None or 0 <= progress.resize_s <= 1e12
    # JSON has null for what is not finite.
    assert msgspec.json.decode(msgspec.json.encode(progress), type=type(progress)) == progress


@fuzz
@given(attempt=damaged_documents(msgspec.json.encode(OVER)))
def test_a_hostile_attempt_file_is_an_attempt_or_refused(tmp_path_factory, attempt) -> None:
    home = tmp_path_factory.mktemp("home")
    write_run(EngineDirectories(home).get_run_dir("j")).attempt.write_bytes(attempt)
    seen = observe(LocalEngine(home), "j")["j"]
    assert 0 <= seen.attempt <= LARGEST_COUNT
    assert not seen.present


def count_read_bytes() -> int:
    """Return how many bytes this process has read."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_file_that_has_grown_by_gigabytes_is_followed_from_its_end(tmp_path) -> None:
    run_dir = write_run(EngineDirectories(tmp_path).get_run_dir("j"))
    watched = RunLine(run_dir)
    assert watched.read_progress().step == 7
    begun = count_read_bytes()
    with run_dir.ledger.open("r+b") as file:
        file.truncate(10 << 30)
        file.seek(0, 2)
        file.write(b"\n" + msgspec.json.encode(msgspec.structs.replace(LINE, step=9)) + b"\n")
    assert watched.read_progress().step == 9
    assert count_read_bytes() - begun < 10 << 20
    assert read_attempt(run_dir) == OVER
