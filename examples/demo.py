"""Train twice, once in peace and once while workers join, die and leave: the same bytes come out.

Everything here is done with the command line, as you would do it; each command is shown before it runs.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS = 120
TRAINING = [str(Path(__file__).parent / "lm" / "train.py"), f"--steps={STEPS}", "--evaluate-every=40"]


def main() -> int:
    home = tempfile.mkdtemp(prefix="elastane-demo-")
    os.environ["ELASTANE_HOME"] = home
    say(f"A small GPT learns Python's standard library for {STEPS} steps. First one worker, in peace:")
    elastane("run", "--name=quiet", "--workers=1:1", *TRAINING)

    say("The same again, and this time it will not be left in peace:")
    run = start("run", "--name=stormy", "--workers=1:3", "--start=1", *TRAINING)
    try:
        after_step(15, run)
        say("Two workers join. Nobody waits for them:")
        elastane("resize", "stormy", "3", "--wait")
        after_step(45, run)
        say("The worker that was there first is killed in the middle of a step; another takes its place:")
        kill("worker")
        after_step(70, run)
        say("The coordinator is killed:")
        kill("coordinator")
        after_step(85, run)
        say("Down to one worker. Whoever leaves does so between two steps:")
        elastane("resize", "stormy", "1", "--wait")
        code = run.wait()
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    if code != 0:
        return code

    say("What happened:")
    elastane("events", "stormy")
    say("The ledger proves that every sample was trained on once:")
    elastane("verify", "stormy")
    say("And the two runs are the same, bit for bit:")
    same = elastane("verify", "quiet", "stormy")
    say(f"Its report, to open in a browser: {Path(home) / 'runs' / 'stormy' / 'report.html'}")
    if same != 0:
        return same
    say(f"Remove it all with: rm -r {home}")
    return 0


def say(text: str) -> None:
    width = shutil.get_terminal_size().columns
    print(f"\n{'-' * min(width, 110)}\n{text}\n", flush=True)


def start(*arguments: str) -> "subprocess.Popen[bytes]":
    print("$ elastane " + " ".join(arguments), flush=True)
    return subprocess.Popen([sys.executable, "-m", "elastane.cli.main", *arguments])


def elastane(*arguments: str) -> int:
    return start(*arguments).wait()


def after_step(step: int, run: "subprocess.Popen[bytes]") -> None:
    """Wait until the ledger has ``step``; an end of the run ends the demo."""
    ledger = Path(os.environ["ELASTANE_HOME"]) / "runs" / "stormy" / "ledger.jsonl"
    while not ledger.exists() or ledger.read_bytes().count(b"\n") < step:
        if run.poll() is not None:
            sys.exit(f"the run ended before step {step}, with exit code {run.returncode}")
        time.sleep(0.05)


def kill(role: str) -> None:
    """``kill -9`` of the first process that has this role in ``elastane ps``."""
    command = [sys.executable, "-m", "elastane.cli.main", "ps", "stormy", "--json"]
    rows = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    pid = next(row["pid"] for row in rows if row["role"] == role)
    print(f"$ kill -9 {pid}", flush=True)
    os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
