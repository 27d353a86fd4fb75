"""Processes that a script starts and does not end, end with their worker or with the run."""

import os
import signal
from pathlib import Path

import pytest

from elastane.run.nouns.control import AskDrain
from tests.waiting import wait_until, wait_until_async

from .attempts import find_run_processes
from .stage import SCRIPTS, find_members, get_state, is_alive

pytestmark = pytest.mark.processes

SCRIPT = """
import multiprocessing, os, runpy, subprocess, sys, time
from pathlib import Path

out, training, *sys.argv[1:] = sys.argv[1:]
worker = os.getpid()
child = ["sleep", "1000"]
children = [subprocess.Popen(child).pid, subprocess.Popen(["nohup", *child]).pid]
children.append(multiprocessing.get_context("fork").Process(target=time.sleep, args=(1e3,), daemon=True))
children[-1].start()
children[-1] = children[-1].pid
background = ["sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!"]
children.append(int(subprocess.check_output(background)))
detached = [
    subprocess.Popen(child, start_new_session=True).pid,
    int(subprocess.check_output(["setsid", *background])),
]
(Path(out) / f"{worker}.part").write_text(" ".join(map(str, [*children, "-", *detached])))
(Path(out) / f"{worker}.part").rename(Path(out) / str(worker))
sys.path.insert(0, str(Path(training).parent))
runpy.run_path(training, run_name="training")
"""


def read_children(out: Path) -> dict[int, tuple[set[int], set[int]]]:
    """Return the children in the session of each worker, and those in sessions of their own."""
    found = {}
    for note in out.glob("[0-9]*[0-9]"):
        usual, detached = note.read_text().split(" - ")
        found[int(note.name)] = set(map(int, usual.split())), set(map(int, detached.split()))
    return found


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_children_end_with_their_worker_and_at_the_latest_with_the_run(stage, script, tmp_path):
    """Worker 1 leaves and worker 2 is killed; their children end while worker 0 trains."""

    async def disturb(run):
        await run.wait_for_step(4)
        living = dict(run.agent.workers.living)
        (kept, _), (of_1, _), (of_2, _) = (read_children(tmp_path)[living[worker]] for worker in (0, 1, 2))
        os.kill(living[2], signal.SIGKILL)
        await run.step_until(lambda answer: 2 not in find_members(answer))
        answer = await run.ask(AskDrain(worker=1))
        assert answer.ok
        await run.step_until(lambda answer: get_state(answer, 1) == "")
        await run.wait_for_event("worker.left", "worker 1")
        await wait_until_async(lambda: not any(map(is_alive, of_1 | of_2)), "the children of both end")
        assert all(map(is_alive, kept))
        run.stop_pacing()

    ended = stage.play(
        str(tmp_path), str(SCRIPTS / "training.py"), "--paced-from=5", script=script, disturb=disturb, start=3
    )
    assert ended.outcome.code == 0, ended.describe()
    children = read_children(tmp_path)
    assert len(children) >= 3
    assert [pid for usual, detached in children.values() for pid in usual | detached if is_alive(pid)] == []


def test_children_end_if_the_agent_is_killed(attempts, script, tmp_path):
    attempts.begin(
        "--start=2",
        script=str(script),
        args=(str(tmp_path), str(SCRIPTS / "training.py"), "--paced-from=5"),
    )
    attempts.wait_for_step(4)
    children = {pid for usual, detached in read_children(tmp_path).values() for pid in usual | detached}
    (agent,) = (pid for pid, files in find_run_processes(attempts.run_dir).items() if "lock" in files)
    assert all(map(is_alive, children))
    os.kill(agent, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, children)), "all children end")
