"""``elastane run --contract torchrun`` in a terminal: output, exit codes, resume, and a killed command."""

import os
import re
import signal
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.waiting import WAIT_S, wait_until

from .stage import is_alive

pytestmark = pytest.mark.processes


@pytest.fixture
def start_run(stage, tmp_path):
    """Return a function that starts ``elastane run`` with a script, and ends it with the test."""
    started = []

    def start(text: str, *options: str, resume: bool = False) -> subprocess.Popen[str]:
        script = tmp_path / "script.py"
        script.write_text("import os, signal, sys, time\nfrom pathlib import Path\n" + textwrap.dedent(text))
        program = ("--resume", "trial") if resume else ("--contract", "torchrun", "--name", "trial", *options)
        command = [*stage.warm_client, "elastane", "run", *program, *(() if resume else (str(script),))]
        run = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, "ELASTANE_HOME": str(tmp_path / "home")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(run)
        return run

    yield start
    for run in started:
        if run.poll() is None:
            run.kill()
        run.communicate()


def test_the_output_of_rank_0_and_the_end_are_shown(start_run):
    run = start_run("print('hello from', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])", "--workers=2")
    output, _ = run.communicate(timeout=WAIT_S)
    assert run.returncode == 0, output
    assert "hello from 0 of 2\n" in output
    assert "hello from 1" not in output
    assert re.search(r"^finished in [\d.]+ s$", output, re.MULTILINE)


def test_a_failure_prints_the_traceback_and_gives_exit_code_1(start_run):
    run = start_run("raise ValueError('no such file')", "--workers=1")
    output, _ = run.communicate(timeout=WAIT_S)
    assert run.returncode == 1, output
    assert output.count("ValueError: no such file") == 2
    assert "worker 0 failed: exit code 1" in output
    assert "elastane/run/worker" not in output


def test_a_stopped_run_saves_and_is_resumed_from_its_snapshot(start_run, tmp_path):
    text = """
        saved = Path(__file__).with_name("saved")
        print("before:", saved.exists(), flush=True)
        def save(*_):
            saved.touch()
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        Path(__file__).with_name("ready").touch()
        while not saved.exists():
            time.sleep(0.01)
    """
    run = start_run(text, "--workers=1")
    wait_until((tmp_path / "ready").exists, "the script runs")
    # The client of the warm process passes the signal on.
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=WAIT_S)
    assert run.returncode == 130, output
    assert "stopping when the script has saved; press Ctrl-C again to end at once" in output
    assert "starts the script again, from its own snapshot" in output
    resumed = start_run(text, resume=True)
    output, _ = resumed.communicate(timeout=WAIT_S)
    assert resumed.returncode == 0, output
    assert "before: True\n" in output
    assert "before: False\n" not in output


def test_no_process_of_a_killed_command_is_left(start_run, tmp_path):
    run = start_run(
        """
        import subprocess
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        Path(__file__).with_name("new").write_text(f"{os.getpid()} {child.pid}")
        Path(__file__).with_name("new").rename(Path(__file__).with_name("pids"))
        time.sleep(1000)
        """,
        "--workers=1",
    )
    pids = tmp_path / "pids"
    wait_until(pids.exists, "the script runs")
    run.kill()
    run.wait()
    found = [int(pid) for pid in pids.read_text().split()]
    wait_until(lambda: not any(map(is_alive, found)), "its processes have ended")


def test_other_commands_say_what_the_script_has_not(start_run, stage, tmp_path):
    run = start_run("pass", "--workers=1")
    run.communicate(timeout=WAIT_S)
    for command in (["verify", "trial"], ["export", "trial", "--format=hf"], ["checkpoint", "list", "trial"]):
        done = subprocess.run(
            [*stage.warm_client, "elastane", *command],
            env={**os.environ, "ELASTANE_HOME": str(tmp_path / "home")},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith(
            "error: trial runs an unmodified script (--contract torchrun), so it has no"
        )
        assert not list(Path(tmp_path).glob("trial-hf"))
