"""A run as a user starts it: without the warm process, each command in a new process."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from elastane.cli.main import app
from elastane.run.connections.coordinator_request import ask_coordinator
from elastane.run.nouns.control import AskStatus
from elastane.run.nouns.rundir import RunDir
from tests.waiting import WAIT_S, wait_until

from .stage import SCRIPTS

pytestmark = [pytest.mark.processes, pytest.mark.early]

STEPS = 150
PACE_S = 0.1
ANSWER_S = 10.0
ELASTANE = (sys.executable, "-P", "-m", "elastane.cli.main")


def assert_equal(reference, files):
    verified = CliRunner().invoke(app, ["verify", str(reference.run.run_dir.root), str(files.root)])
    assert verified.exit_code == 0, verified.output


def count_steps(files):
    return files.ledger.read_bytes().count(b"\n") if files.ledger.exists() else 0


def run_while_stepping(files, *words):
    """Run a command that waits for steps of a paced run, let the run make them, and return the answer."""
    with subprocess.Popen([*ELASTANE, *words], stdout=subprocess.PIPE) as command:
        pace_s = PACE_S
        try:
            while command.poll() is None:
                # A step is in the ledger once the script has asked for the next one.
                following = count_steps(files) + 2
                assert following < STEPS, f"the last step came before the end of {words}"
                (files.root / f"gate-{following - 1}").touch()
                (files.root / f"gate-{following}").touch()
                time.sleep(pace_s)  # not a wait: paces the steps
                # On a busy machine a command takes many seconds to start.
                pace_s *= 1.05
        finally:
            # It may wait for a step that no gate lets through.
            command.kill()
        assert command.returncode == 0, words
        return json.loads(command.stdout.read())


@pytest.mark.long
def test_a_run_is_started_resized_drained_and_verified_from_the_shell(play_reference, tmp_path):
    files = RunDir(tmp_path / "run")
    options = ("--workers=1:4", "--start=2", "--digest-every=5", f"--run-dir={files.root}")
    script = (str(SCRIPTS / "training.py"), "--paced-from=5", f"--steps={STEPS}")
    with (tmp_path / "output").open("wb") as output:
        run = subprocess.Popen([*ELASTANE, "run", *options, *script], stdout=output, stderr=output)
    try:
        wait_until(lambda: count_steps(files) >= 4 or run.poll() is not None, "four steps are made")
        assert run.poll() is None, (tmp_path / "output").read_text()
        assert run_while_stepping(files, "resize", str(files.root), "3", "--wait", "--json")["workers"] == [
            0,
            1,
            2,
        ]
        assert run_while_stepping(files, "drain", str(files.root), "1", "--wait", "--json")["workers"] == [
            0,
            2,
        ]
        (files.root / "gates").touch()
        assert run.wait(WAIT_S) == 0, (tmp_path / "output").read_text()
    finally:
        run.kill()
        run.wait()
    assert_equal(play_reference(STEPS), files)
    shares = [json.loads(line)["workers"].keys() for line in files.ledger.read_text().splitlines()]
    assert {"0", "1", "2"} in shares
    assert shares[-1] == {"0", "2"}


SCRIPT_THAT_IS_KILLED_ONCE = """
import os, signal, sys
print("loaded", *sorted(sys.modules.keys() & {"torch", "wave"}), "parent", os.getppid(), flush=True)
import torch
import wave
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_restarted_script_does_not_import_torch_again(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT_THAT_IS_KILLED_ONCE)
    options = ("--contract=torchrun", "--workers=1", f"--run-dir={tmp_path / 'run'}")
    # In the session's warm process torch would be loaded whatever the fork server does.
    run = subprocess.run(
        [*ELASTANE, "run", *options, str(script)], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    # Both starts are forks of the same process, which had loaded what the script imports.
    first, second = re.findall(r"^loaded .*$", run.stdout, re.MULTILINE)
    assert first == second
    assert first.startswith("loaded torch wave parent ")


def start_under_hash_seed(seed, log, *words):
    """Start a command in an environment with this PYTHONHASHSEED; it prints into a file."""
    with log.open("wb") as output:
        environment = os.environ | {"PYTHONHASHSEED": seed}
        return subprocess.Popen([*ELASTANE, *words], stdout=output, stderr=output, env=environment)


def find_fork_servers(files, state):
    """Return the process ids of the fork servers in this state."""
    rows = ask_coordinator(files, AskStatus(), ANSWER_S).processes
    return {row.pid for row in rows if row.role == "fork-server" and row.state == state}


@pytest.mark.long
def test_the_order_of_a_set_is_the_same_in_every_process_and_attempt(stage, tmp_path):
    reference = stage.play(f"--steps={STEPS}", script="unordered.py")
    assert reference.outcome.code == 0, reference.describe()
    files = RunDir(tmp_path / "run")
    options = ("--workers=1:4", "--start=1", "--digest-every=5", f"--run-dir={files.root}")
    script = (str(SCRIPTS / "unordered.py"), "--paced-from=5", f"--steps={STEPS}")
    log = tmp_path / "output"
    run = start_under_hash_seed("random", log, "run", *options, *script)
    try:
        wait_until(lambda: count_steps(files) >= 4 or run.poll() is not None, "four steps are made")
        (first,) = find_fork_servers(files, "ready")
        # Python would draw another seed for the next fork server, which forks the worker that joins.
        os.kill(first, signal.SIGKILL)
        wait_until(
            lambda: find_fork_servers(files, "ready") - {first},
            "another fork server has imported its modules",
        )
        assert run_while_stepping(files, "resize", str(files.root), "2", "--wait", "--json")["workers"] == [
            0,
            1,
        ]
        run_while_stepping(files, "stop", str(files.root), "--wait", "--json")
        assert run.wait(WAIT_S) == 130, log.read_text()
        (files.root / "gates").touch()
        run = start_under_hash_seed("12345", log, "run", f"--resume={files.root}", "--start=2")
        assert run.wait(WAIT_S) == 0, log.read_text()
    finally:
        run.kill()
        run.wait()
    assert_equal(reference, files)
