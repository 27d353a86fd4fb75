"""Each worker of a machine gets its own GPU, if there are enough."""

import os
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from elastane.run.worker.state.gpu_locks import lock_gpu


class Workers:
    """Processes that each hold the lock of a GPU; a fork costs less than another import of torch."""

    def __init__(self) -> None:
        self._living: list[int] = []

    def start(self, folder: Path, names: str, number: int, user: int | None = None) -> tuple[int, str]:
        """Start a worker, as this user; return its process id and its GPU."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            _hold_gpu(writing, folder, names.split(","), number, user)
        self._living.append(pid)
        os.close(writing)
        with os.fdopen(reading) as answer:
            return pid, answer.readline().strip()

    def kill(self, pid: int) -> None:
        self._living.remove(pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def kill_all(self) -> None:
        for pid in tuple(self._living):
            self.kill(pid)


def _hold_gpu(answer: int, folder: Path, names: list[str], number: int, user: int | None) -> NoReturn:
    try:
        if user is not None:
            os.setuid(user)
        os.write(answer, f"{lock_gpu(names, number, folder)}\n".encode())
        signal.pause()
    except BaseException:  # noqa: BLE001 - the forked process must not go on as pytest
        traceback.print_exc()
        os._exit(1)


@pytest.fixture
def workers() -> Iterator[Workers]:
    begun = Workers()
    yield begun
    begun.kill_all()


@pytest.fixture
def lock(workers, tmp_path) -> Callable[..., str]:
    """Return a function that starts a worker and returns its GPU."""
    return lambda number, names="0,1": workers.start(tmp_path / "locks", names, number)[1]


def test_workers_of_two_runs_have_different_gpus(lock):
    assert [lock(0), lock(0)] == ["0", "1"]


def test_workers_share_gpus_in_turn_if_all_are_locked(lock):
    assert [lock(number) for number in (1, 2, 3, 4)] == ["1", "0", "1", "0"]


def test_the_gpu_of_a_dead_worker_is_free(workers, tmp_path):
    dead, its = workers.start(tmp_path / "locks", "GPU-a/0,GPU-b/0", 0)
    workers.kill(dead)
    assert workers.start(tmp_path / "locks", "GPU-a/0,GPU-b/0", 2)[1] == its


def test_a_link_in_place_of_the_lock_folder_is_not_followed(lock, tmp_path):
    aim = tmp_path / "aim"
    aim.mkdir()
    (tmp_path / "locks").symlink_to(aim)
    assert lock(1) == "1"
    assert list(aim.iterdir()) == []


@pytest.fixture
def folder(tmp_path) -> Path:
    """The folder of the locks, before any worker has used it."""
    (tmp_path / "locks").mkdir(mode=0o700)
    return tmp_path / "locks"


def test_a_link_in_place_of_a_lock_file_is_not_followed(lock, folder, tmp_path):
    aim = tmp_path / "aim"
    (folder / "1").symlink_to(aim)
    assert lock(1) == "0"
    assert not aim.exists()


def test_a_pipe_in_place_of_a_lock_file_does_not_block(lock, folder):
    os.mkfifo(folder / "1")
    assert lock(1) == "0"


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_folder_that_others_may_change_is_not_used(lock, folder, mode):
    folder.chmod(mode)
    assert lock(1) == "1"
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_is_not_used(lock, folder):
    os.chown(folder, 65534, -1)
    assert lock(1) == "1"
    assert list(folder.iterdir()) == []


def test_locks_are_private_with_any_umask(lock, tmp_path):
    before = os.umask(0)
    try:
        lock(0)
    finally:
        os.umask(before)
    assert (tmp_path / "locks").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "locks" / "0").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start processes of other users")
def test_workers_of_different_users_share_a_lock_folder_of_root(workers):
    place = Path(tempfile.mkdtemp(prefix="elastane-locks-"))
    place.chmod(0o1777)
    folder = place / "locks"
    folder.mkdir()
    folder.chmod(0o1777)
    try:
        assert [workers.start(folder, "0,1", 0, user)[1] for user in (65534, 65533)] == ["0", "1"]
    finally:
        shutil.rmtree(place)
