"""The system user of a job, and the checks that keep jobs from running as another one."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from elastane.cluster.engines.local import accounts, user_isolation, user_launcher
from elastane.cluster.engines.local.accounts import (
    Account,
    build_job_environment,
    find_account,
    find_team_account,
)
from elastane.cluster.engines.local.engine import EngineDirectories, LocalEngine
from elastane.cluster.nouns.engine import KillAttempt, StartAttempt
from elastane.cluster.nouns.jobs import JobSpec
from elastane.cluster.nouns.run_as import RunAs, parse_run_as
from elastane.common.errors import BadInput, ElastaneError
from elastane.common.permissions import use_owner_rights
from elastane.run.agent.presence import hold_presence, list_present_processes
from elastane.run.attempts.attempt_file import write_attempt
from elastane.run.nouns.attempts import Attempt
from elastane.run.nouns.rundir import RunDir

NOBODY = 65534
ACCOUNT = Account("el-red", 4000, 4001, (4001, 4002), "/home/el-red", "/bin/sh")


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can take another user's rights")


@pytest.fixture
def place() -> Iterator[Path]:
    """Make a folder that other users can enter, so that a refusal has another reason."""
    found = Path(tempfile.mkdtemp(prefix="elastane-isolation-"))
    found.chmod(0o755)
    yield found
    shutil.rmtree(found)


# -- which user --------------------------------------------------------------------------------------------


def test_a_team_has_its_own_user_and_other_teams_have_the_default() -> None:
    run_as = parse_run_as(["red=el-red", "el-jobs"])
    assert [run_as.find_user(team) for team in ("red", "blue")] == ["el-red", "el-jobs"]
    assert run_as.users == ("el-jobs", "el-red")


def test_without_users_jobs_run_as_the_controller() -> None:
    assert parse_run_as([]).find_user("red") == ""
    assert find_team_account(RunAs(), "red") is None


def test_a_team_without_a_user_is_refused_once_others_have_one() -> None:
    with pytest.raises(BadInput, match="team blue has no system user"):
        parse_run_as(["red=el-red"]).find_user("blue")


@pytest.mark.parametrize("words", [["=x"], ["red="], [""], ["red=a", "red=b"], ["a", "b"]])
def test_missing_and_contradicting_users_are_refused(words) -> None:
    with pytest.raises(BadInput):
        parse_run_as(words)


def test_a_repeated_user_is_accepted() -> None:
    assert parse_run_as(["red=a", "red=a", "b", "b"]) == RunAs(default="b", teams={"red": "a"})


def test_root_and_unknown_users_cannot_run_jobs() -> None:
    with pytest.raises(BadInput, match="uid 0"):
        find_account("root")
    with pytest.raises(BadInput, match="no user no-such-user"):
        find_account("no-such-user")


def test_a_second_name_of_root_counts_as_root(monkeypatch) -> None:
    toor = accounts.pwd.struct_passwd(("toor", "x", 0, 0, "", "/", "/bin/sh"))
    monkeypatch.setattr(accounts.pwd, "getpwnam", lambda _: toor)
    with pytest.raises(BadInput, match="uid 0"):
        find_account("toor")


def test_only_a_controller_of_root_can_start_processes_of_other_users(monkeypatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(BadInput, match="does not run as root"):
        find_team_account(parse_run_as(["red=el-red"]), "red")
    with pytest.raises(BadInput, match="needs root"):
        user_isolation.check_users(parse_run_as(["el-red"]))


# -- environment and directories ---------------------------------------------------------------------------


def test_a_job_has_the_environment_of_its_user_without_variables_of_the_controller() -> None:
    own = {
        "PATH": "/bin", "HOME": "/root", "USER": "root", "SHELL": "/bin/zsh", "TMPDIR": "/root/tmp",
        "ELASTANE_TOKEN": "ela_secret", "ELASTANE_HOME": "/var/lib/elastane", "PGPASSWORD": "secret",
    }  # fmt: skip
    assert build_job_environment({"COLOUR": "red"}, own, ACCOUNT) == {
        "PATH": "/bin",
        "HOME": "/home/el-red",
        "USER": "el-red",
        "LOGNAME": "el-red",
        "SHELL": "/bin/sh",
        "COLOUR": "red",
    }


def test_a_process_that_is_still_root_does_not_become_an_agent(tmp_path) -> None:
    order = StartAttempt(job="j", attempt=1, workers=1, spec=JobSpec(name="j", team="t", script="/train.py"))
    for uid in {0, os.getuid(), NOBODY} - ({os.getuid()} if os.getuid() else set()):
        with pytest.raises(PermissionError):
            user_launcher.become_agent(
                user_launcher.LaunchTask(order, str(tmp_path), ("true",), uid, "somebody")
            )


def test_a_run_directory_of_another_user_is_not_used(tmp_path) -> None:
    (tmp_path / "j").mkdir()
    (tmp_path / "j" / "run.json").touch()
    with pytest.raises(ElastaneError, match="belongs to user"):
        user_isolation.ensure_run_directory(tmp_path / "j", ACCOUNT)
    (tmp_path / "link").symlink_to(tmp_path / "j")
    with pytest.raises(ElastaneError, match="belongs to user"):
        user_isolation.ensure_run_directory(tmp_path / "link", ACCOUNT)


@as_root
def test_root_refuses_a_run_directory_that_another_user_owns(place) -> None:
    root = EngineDirectories(place).get_run_dir("j").root
    root.mkdir(parents=True)
    os.chown(root, NOBODY, NOBODY)
    script = place / "train.py"
    script.touch()
    order = StartAttempt(job="j", attempt=1, workers=1, spec=JobSpec(name="j", team="t", script=str(script)))
    refused = asyncio.run(LocalEngine(place, agent=("false",)).carry_out([order]))
    assert "belongs to user" in refused["j"]


# -- files and processes of others -------------------------------------------------------------------------


@as_root
def test_a_link_to_a_file_of_root_is_not_read(place) -> None:
    secret = place / "secret"
    secret.write_text("ela_secret")
    secret.chmod(0o600)
    theirs = place / "theirs"
    theirs.mkdir()
    (theirs / "link").symlink_to(secret)
    os.link(secret, theirs / "second-name")
    os.chown(theirs, NOBODY, NOBODY)
    with use_owner_rights(theirs):
        for name in ("link", "second-name"):
            with pytest.raises(PermissionError):
                (theirs / name).read_text()
        (theirs / "new").touch()
    assert (theirs / "new").stat().st_uid == NOBODY
    assert (theirs / "link").read_text() == "ela_secret", "afterwards root is root"


@as_root
def test_the_rights_of_root_return_after_a_failure(tmp_path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    with pytest.raises(RuntimeError), use_owner_rights(tmp_path):
        raise RuntimeError
    (tmp_path / "made").touch()
    assert (tmp_path / "made").stat().st_uid == 0


def test_files_of_the_same_user_are_accessed_as_before(tmp_path) -> None:
    with use_owner_rights(tmp_path):
        (tmp_path / "made").touch()
    with use_owner_rights(tmp_path / "not there"):
        assert (tmp_path / "made").exists()


def test_a_lock_that_a_job_holds_is_not_waited_for(tmp_path) -> None:
    run_dir = RunDir(tmp_path)
    program = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX); "
        "print(flush=True); input()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(run_dir.presence)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        holder.stdout.readline()
        with pytest.raises(OSError, match="unavailable"):
            hold_presence(run_dir)
    finally:
        holder.communicate(b"\n")


def test_processes_of_other_users_do_not_count_as_present(tmp_path) -> None:
    run_dir = RunDir(tmp_path)
    descriptor = hold_presence(run_dir)
    assert list_present_processes(run_dir) == list_present_processes(run_dir, os.getuid()) == (os.getpid(),)
    assert list_present_processes(run_dir, NOBODY) == ()
    os.close(descriptor)


@as_root
def test_a_process_of_another_user_is_not_taken_for_the_agent_and_not_killed(place) -> None:
    """A job writes root's process, which has the lock file open too, into its attempt.json."""
    run_dir = EngineDirectories(place).get_run_dir("j")
    run_dir.root.mkdir(parents=True)
    presence = hold_presence(run_dir)
    os.set_inheritable(presence, True)
    victim = subprocess.Popen(["sleep", "60"], close_fds=False)
    os.close(presence)
    try:
        stat = Path(f"/proc/{victim.pid}/stat").read_text()
        write_attempt(
            run_dir,
            Attempt(number=1, pid=victim.pid, started=int(stat.rpartition(")")[2].split()[19]), began_s=0.0),
        )
        for path in (run_dir.root, run_dir.presence, run_dir.attempt):
            os.chown(path, NOBODY, NOBODY)
        engine = LocalEngine(place, run_as=RunAs(default="nobody"))
        seen = asyncio.run(engine.observe(["j"]))["j"]
        assert (seen.attempt, seen.agent) == (1, False)
        asyncio.run(engine.carry_out([KillAttempt(job="j", attempt=1)]))
        assert victim.poll() is None
    finally:
        victim.send_signal(signal.SIGKILL)
        victim.wait()


def test_users_are_read_back_from_json() -> None:
    run_as = RunAs(default="a", teams={"red": "b"})
    assert msgspec.json.decode(msgspec.json.encode(run_as), type=RunAs) == run_as
