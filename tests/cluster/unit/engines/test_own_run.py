"""The run directories of agents that share none."""

import os

from elastane.cluster.engines.own_run import make_own_run_dir
from elastane.run.nouns.rundir import RunDir


def test_the_next_agent_removes_what_one_that_was_killed_has_left(tmp_path):
    killed, living, new = (RunDir(tmp_path / "agent-runs" / name) for name in ("c1-1", "c1-2", "c1-3"))
    lock = make_own_run_dir(killed)
    kept = make_own_run_dir(living)
    for run_dir in (killed, living):
        run_dir.secret.write_text("secret")
    # The kernel closes it with the process.
    os.close(lock)
    others = make_own_run_dir(new), kept
    assert not killed.root.exists()
    assert living.secret.read_text() == "secret"
    assert sorted(new.root.iterdir()) == [new.root / "logs", new.root / "presence"]
    for descriptor in others:
        os.close(descriptor)


def test_an_agent_begins_with_an_empty_directory_again(tmp_path):
    run_dir = RunDir(tmp_path / "c1-1")
    os.close(make_own_run_dir(run_dir))
    run_dir.secret.write_text("secret")
    (tmp_path / ".c1-1").mkdir()
    descriptor = make_own_run_dir(run_dir)
    assert not run_dir.secret.exists()
    os.close(descriptor)


def test_an_entry_that_is_no_directory_of_an_agent_stays(tmp_path):
    (tmp_path / "note").write_text("mine")
    (tmp_path / "elsewhere").symlink_to("/")
    os.close(make_own_run_dir(RunDir(tmp_path / "c1-1")))
    assert {path.name for path in tmp_path.iterdir()} == {"note", "elsewhere", "c1-1"}
