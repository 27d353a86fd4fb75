"""The process of a worker ends as a Python process ends after its script; no other worker waits for it."""

from pathlib import Path

import pytest

from elastane.run.nouns.control import AskDrain
from tests.waiting import wait_until_async

from .stage import SCRIPTS, get_state, is_alive

pytestmark = pytest.mark.processes

ENDINGS = {
    "its last line": ("", 0),
    "sys.exit()": ("sys.exit()", 0),
    "sys.exit(3)": ("sys.exit(3)", 1),
    "an error": ("raise ValueError('too bad')", 1),
}
SCRIPT = """
import atexit, os, sys, tempfile, threading, time, runpy
from pathlib import Path

out, training, ending, *sys.argv[1:] = sys.argv[1:]
out = Path(out) / str(os.getpid())
out.mkdir(parents=True)
kept = (out / "kept").open("w")
kept.write("never closed")
folder = tempfile.TemporaryDirectory(dir=out)

class Finalized:
    def __del__(self):
        (out / "finalized").touch()

finalized = Finalized()

def upload():
    while not (out.parent / "release").exists():
        time.sleep(0.01)
    (out / "uploaded").write_text(str(sys.modules["__main__"].ending == ending))

def note(kind, error, trace):
    (out / "hook").write_text(str(error))

atexit.register(lambda: (out / "called").write_text(str((out / "uploaded").exists())))
threading.Thread(target=upload).start()
threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
sys.excepthook = note
sys.path.insert(0, str(Path(training).parent))
runpy.run_path(training, run_name="training")
exec(ending)
"""
"""It trains as ``training.py`` does, in a module of another name than its own."""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def read_notes(folder: Path) -> dict[str, str]:
    return {note.name: note.read_text() for note in folder.iterdir()}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_worker_ends_as_python_ends(stage, script, tmp_path, ending):
    text, code = ENDINGS[ending]
    out = tmp_path / "out"
    out.mkdir()
    (out / "release").touch()
    ended = stage.play(str(out), str(SCRIPTS / "training.py"), text, "--steps=2", script=script)
    assert ended.outcome.code == code, ended.describe()
    (folder,) = (path for path in out.iterdir() if path.is_dir())
    expected = {"kept": "never closed", "finalized": "", "uploaded": "True", "called": "True"}
    assert read_notes(folder) == expected | ({"hook": "too bad"} if ending == "an error" else {})


def test_no_worker_waits_for_the_end_of_another_one(stage, script, tmp_path, assert_equals_reference):
    """The thread of the worker that leaves runs on, and the run makes its steps and replaces the worker."""
    out = tmp_path / "out"
    out.mkdir()
    late = []

    async def disturb(run):
        await run.wait_for_step(4)
        answer = await run.ask(AskDrain(worker=1))
        assert answer.ok
        pid = run.agent.workers.living[1]
        await run.step_until(lambda answer: get_state(answer, 1) == "")
        await run.wait_for_event("worker.left", "worker 1")
        await wait_until_async(lambda: 1 not in run.agent.workers.living, "the agent counts it as gone")
        await run.resize(2)
        await run.wait_for_event("worker.ready", "worker 2")
        late.append(is_alive(pid))
        run.stop_pacing()
        await run.wait_for_event("run.finished")
        late.append(is_alive(pid))
        (out / "release").touch()

    ended = stage.play(
        str(out), str(SCRIPTS / "training.py"), "", "--paced-from=5", script=script, disturb=disturb, start=2
    )
    assert ended.outcome.code == 0, ended.describe()
    assert late == [True, True]
    assert ended.find_subjects("worker.died") == []
    notes = [read_notes(folder) for folder in out.iterdir() if folder.is_dir()]
    assert [note["called"] for note in notes] == ["True"] * 3
    assert {note["kept"] for note in notes} == {"never closed"}


def test_the_end_of_a_process_has_a_limit(stage, script, tmp_path):
    out = tmp_path / "out"
    ended = stage.play(
        str(out), str(SCRIPTS / "training.py"), "", "--steps=2", script=script, end_s=0.2, start=2
    )
    assert ended.outcome.code == 0, ended.describe()
    for worker in (0, 1):
        log = ended.read_log(f"worker-{worker}")
        assert "not within 0.2 s (end_s in run.json)" in log
        assert "in upload" in log
