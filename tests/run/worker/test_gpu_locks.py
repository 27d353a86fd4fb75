"""Each worker of a machine gets its own GPU, if there are enough."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import elastane
from tests.waiting import WAIT_S

LOCKING = """
import sys
import tempfile
from pathlib import Path
from elastane.run.worker.state.gpu_locks import lock_gpu
print(lock_gpu(sys.argv[2].split(","), int(sys.argv[3]), Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def worker(tmp_path) -> Iterator[Callable]:
    """Return a function that starts a worker and returns its GPU."""
    begun = []

    def start(number: int, names: str = "0,1") -> tuple[subprocess.Popen, str]:
        process = subprocess.Popen(
            [sys.executable, "-c", LOCKING, str(tmp_path / "locks"), names, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(Path(elastane.__file__).parents[1])},
        )
        begun.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in begun:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_workers_of_two_runs_have_different_gpus(worker):
    assert [worker(0)[1], worker(0)[1]] == ["0", "1"]


def test_workers_share_gpus_in_turn_if_all_are_locked(worker):
    assert [worker(number)[1] for number in (1, 2, 3, 4)] == ["1", "0", "1", "0"]


def test_the_gpu_of_a_dead_worker_is_free(worker):
    dead, its = worker(0, "GPU-a/0,GPU-b/0")
    dead.kill()
    dead.wait()
    assert worker(2, "GPU-a/0,GPU-b/0")[1] == its


@pytest.fixture
def strangers(tmp_path) -> Callable:
    """Return a function that prepares the lock folder, runs a worker and returns its GPU."""

    def lock(prepare: Callable[[Path], None], *, number: int = 1) -> str:
        prepare(tmp_path / "locks")
        program = LOCKING.replace("sys.stdin.read()", "")
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "locks"), "0,1", str(number)],
            capture_output=True,
            text=True,
            check=True,
            timeout=WAIT_S,
            env={"PYTHONPATH": str(Path(elastane.__file__).parents[1])},
        )
        return done.stdout.strip()

    return lock


def test_a_link_in_place_of_the_lock_folder_is_not_followed(strangers, tmp_path):
    aim = tmp_path / "aim"
    aim.mkdir()
    assert strangers(lambda place: place.symlink_to(aim)) == "1"
    assert list(aim.iterdir()) == []


def test_a_link_in_place_of_a_lock_file_is_not_followed(strangers, tmp_path):
    aim = tmp_path / "aim"

    def prepare(place):
        place.mkdir(mode=0o700)
        (place / "1").symlink_to(aim)

    assert strangers(prepare) == "0"
    assert not aim.exists()


def test_a_pipe_in_place_of_a_lock_file_does_not_block(strangers):
    def prepare(place):
        place.mkdir(mode=0o700)
        os.mkfifo(place / "1")

    assert strangers(prepare) == "0"


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_folder_that_others_may_change_is_not_used(strangers, tmp_path, mode):
    def prepare(place):
        place.mkdir()
        place.chmod(mode)

    assert strangers(prepare) == "1"
    assert list((tmp_path / "locks").iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_is_not_used(strangers, tmp_path):
    def prepare(place):
        place.mkdir(mode=0o700)
        os.chown(place, 65534, -1)

    assert strangers(prepare) == "1"
    assert list((tmp_path / "locks").iterdir()) == []


def test_locks_are_private_with_any_umask(worker, tmp_path):
    before = os.umask(0)
    try:
        worker(0)
    finally:
        os.umask(before)
    assert (tmp_path / "locks").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "locks" / "0").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start processes of other users")
def test_workers_of_different_users_share_a_lock_folder_of_root():
    place = Path(tempfile.mkdtemp(prefix="elastane-locks-"))
    place.chmod(0o1777)
    folder = place / "locks"
    folder.mkdir()
    folder.chmod(0o1777)
    # Another user may not read this Python: the process imports as root and then becomes that user.
    becoming = (
        "import os, sys\nfrom elastane.run.worker.state.gpu_locks import lock_gpu\n"
        "os.setuid(int(sys.argv[4]))\n"
    )
    begun = []
    try:
        for user in (65534, 65533):
            process = subprocess.Popen(
                [sys.executable, "-c", becoming + LOCKING, str(folder), "0,1", "0", str(user)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={"PYTHONPATH": str(Path(elastane.__file__).parents[1])},
            )
            begun.append((process, process.stdout.readline().strip()))
        assert [name for _, name in begun] == ["0", "1"]
    finally:
        for process, _ in begun:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
        shutil.rmtree(place)
