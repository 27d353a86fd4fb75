"""A run as a user starts it: nothing warm, every word through a command of a fresh shell."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from elastane.api.rundir import RunDir

from .stage import SCRIPTS, eventually

pytestmark = pytest.mark.processes

STEPS = 150
PACE_S = 0.1
ELASTANE = (sys.executable, "-P", "-m", "elastane.cli.main")


def elastane(*words):
    return subprocess.run([*ELASTANE, *words], capture_output=True, text=True, check=False)


def steps_of(files):
    return files.ledger.read_bytes().count(b"\n") if files.ledger.exists() else 0


def paced(files, *words):
    """Run a command, and let the script make one step at a time until the command ends."""
    with subprocess.Popen([*ELASTANE, *words], stdout=subprocess.PIPE) as command:
        pace_s = PACE_S
        try:
            while command.poll() is None:
                # A step is in the ledger once the script has come back for the next one.
                following = steps_of(files) + 2
                assert following < STEPS, f"the last step came before the end of {words}"
                (files.root / f"gate-{following - 1}").touch()
                (files.root / f"gate-{following}").touch()
                time.sleep(pace_s)
                # On a busy machine a command takes many seconds to start.
                pace_s *= 1.05
        finally:
            # It may wait for a step that no gate lets through.
            command.kill()
        assert command.returncode == 0, words
        return json.loads(command.stdout.read())


def test_a_run_is_started_resized_drained_and_verified_from_the_shell(quiet, tmp_path):
    files = RunDir(tmp_path / "run")
    options = ("--workers=1:4", "--start=2", "--digest-every=5", f"--run-dir={files.root}")
    script = (str(SCRIPTS / "training.py"), "--paced-from=5", f"--steps={STEPS}")
    with (tmp_path / "said").open("wb") as said:
        run = subprocess.Popen([*ELASTANE, "run", *options, *script], stdout=said, stderr=said)
    try:
        eventually(lambda: steps_of(files) >= 4 or run.poll() is not None, "four steps are made")
        assert run.poll() is None, (tmp_path / "said").read_text()
        assert paced(files, "resize", str(files.root), "3", "--wait", "--json")["workers"] == [0, 1, 2]
        assert paced(files, "drain", str(files.root), "1", "--wait", "--json")["workers"] == [0, 2]
        (files.root / "gates").touch()
        assert run.wait(60) == 0, (tmp_path / "said").read_text()
    finally:
        run.kill()
        run.wait()
    verified = elastane("verify", str(quiet(STEPS).run.run_dir.root), str(files.root))
    assert verified.returncode == 0, verified.stdout + verified.stderr
    shares = [json.loads(line)["workers"].keys() for line in files.ledger.read_text().splitlines()]
    assert {"0", "1", "2"} in shares
    assert shares[-1] == {"0", "2"}


def under_hash_seed(seed, log, *words):
    """A command of a shell that has this PYTHONHASHSEED; it prints into a file."""
    with log.open("wb") as said:
        environment = os.environ | {"PYTHONHASHSEED": seed}
        return subprocess.Popen([*ELASTANE, *words], stdout=said, stderr=said, env=environment)


def spare_of(files):
    rows = json.loads(elastane("ps", str(files.root), "--json").stdout)
    return next((row for row in rows if row["role"] == "fork-server"), {"pid": None, "state": ""})


def test_what_a_script_orders_by_a_set_is_the_same_in_every_process_and_attempt(stage, tmp_path):
    quiet = stage.play(f"--steps={STEPS}", script="unordered.py")
    assert quiet.over.code == 0, quiet.story()
    files = RunDir(tmp_path / "run")
    options = ("--workers=1:4", "--start=1", "--digest-every=5", f"--run-dir={files.root}")
    script = (str(SCRIPTS / "unordered.py"), "--paced-from=5", f"--steps={STEPS}")
    log = tmp_path / "said"
    run = under_hash_seed("random", log, "run", *options, *script)
    try:
        eventually(lambda: steps_of(files) >= 4 or run.poll() is not None, "four steps are made")
        first = spare_of(files)["pid"]
        # Python would draw another seed for the next server, and the joiner comes from that one.
        os.kill(first, signal.SIGKILL)
        eventually(lambda: spare_of(files)["pid"] != first, "another fork server is started")
        eventually(lambda: spare_of(files)["state"] == "ready", "it has imported all")
        assert paced(files, "resize", str(files.root), "2", "--wait", "--json")["workers"] == [0, 1]
        paced(files, "stop", str(files.root), "--wait", "--json")
        assert run.wait(60) == 130, log.read_text()
        (files.root / "gates").touch()
        run = under_hash_seed("12345", log, "run", f"--resume={files.root}", "--start=2")
        assert run.wait(60) == 0, log.read_text()
    finally:
        run.kill()
        run.wait()
    verified = elastane("verify", str(quiet.run.run_dir.root), str(files.root))
    assert verified.returncode == 0, verified.stdout + verified.stderr
