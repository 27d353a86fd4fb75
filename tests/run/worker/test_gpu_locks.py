"""Each worker of a machine gets its own GPU, if there are enough."""

import os
import shutil
import signal
import socket
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from elastane.run.worker.gangs import gang_gpus
from elastane.run.worker.gangs.seat import Seat
from elastane.run.worker.state.gpu_locks import VISIBLE, lock_gpu, lock_gpus


class Workers:
    """Processes that each hold the lock of a GPU; a fork costs less than another import of torch."""

    def __init__(self) -> None:
        self._living: list[int] = []

    def start(self, folder: Path, names: str, number: int, user: int | None = None) -> tuple[int, str]:
        """Start a worker, as this user; return its process id and its GPU."""
        pid, reading = self._begin(lambda: lock_gpu(names.split(","), number, folder), user)
        return pid, self.finish(reading)

    def start_gang(self, folder: Path, names: str, processes: int) -> tuple[int, str]:
        """Start process 0 of a worker of several processes; return its process id and the GPUs."""
        pid, reading = self.begin_gang(folder, names, processes)
        return pid, self.finish(reading)

    def begin_gang(self, folder: Path, names: str, processes: int) -> tuple[int, int]:
        """Start such a process; return its id, and the descriptor from which `finish` reads the GPUs."""
        return self._begin(lambda: ",".join(lock_gpus(names.split(","), processes, folder)))

    def finish(self, reading: int) -> str:
        with os.fdopen(reading) as answer:
            return answer.readline().strip()

    def _begin(self, lock: Callable[[], str], user: int | None = None) -> tuple[int, int]:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            _hold_gpus(writing, lock, user)
        self._living.append(pid)
        os.close(writing)
        return pid, reading

    def kill(self, pid: int) -> None:
        self._living.remove(pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def kill_all(self) -> None:
        for pid in tuple(self._living):
            self.kill(pid)


def _hold_gpus(answer: int, lock: Callable[[], str], user: int | None) -> NoReturn:
    try:
        if user is not None:
            os.setuid(user)
        os.write(answer, f"{lock()}\n".encode())
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


# -- workers of several processes ----------------------------------------------------------------------------


@pytest.fixture
def lock_several(workers, tmp_path) -> Callable[..., str]:
    """Return a function that starts a gang of two processes and returns its GPUs."""
    return lambda names="0,1,2,3": workers.start_gang(tmp_path / "locks", names, 2)[1]


def test_gangs_have_different_gpus(lock_several):
    assert [lock_several(), lock_several()] == ["0,1", "2,3"]


def test_a_gang_takes_the_gpus_that_single_workers_have_left(lock, lock_several):
    assert lock(1, "0,1,2,3") == "1"
    assert lock_several() == "0,2"


def test_a_gang_with_too_few_free_gpus_gets_none_and_gives_back_those_that_it_has_locked(lock, lock_several):
    assert lock(2, "0,1,2") == "2"
    assert lock_several("0,2") == ""
    assert lock(0, "0,1,2") == "0"


def test_the_gpus_of_a_dead_gang_are_free(workers, tmp_path):
    dead, its = workers.start_gang(tmp_path / "locks", "0,1", 2)
    assert workers.start_gang(tmp_path / "locks", "0,1", 2)[1] == ""
    workers.kill(dead)
    assert workers.start_gang(tmp_path / "locks", "0,1", 2)[1] == its == "0,1"


def test_gangs_that_start_together_do_not_take_each_others_gpus(workers, tmp_path):
    """Each of the two would find a GPU of the other locked if they looked at the same time."""
    for _ in range(20):
        begun = [workers.begin_gang(tmp_path / "locks", names, 2) for names in ("0,1", "1,0")]
        found = sorted(workers.finish(reading) for _, reading in begun)
        assert found[0] == ""
        assert set(found[1].split(",")) == {"0", "1"}
        workers.kill_all()


def test_a_gang_gets_no_gpu_if_others_may_change_the_folder(lock_several, folder):
    folder.chmod(0o777)
    assert lock_several() == ""
    assert list(folder.iterdir()) == []


def test_a_link_in_place_of_the_turn_is_not_followed(lock_several, folder, tmp_path):
    aim = tmp_path / "aim"
    (folder / "turn").symlink_to(aim)
    assert lock_several() == ""
    assert not aim.exists()


@pytest.fixture
def seats() -> Iterator[tuple[Seat, Seat, socket.socket]]:
    """The seats of process 0 and of process 1, and the end of process 0 of the socket between them."""
    first, second = socket.socketpair()
    with first, second:
        yield Seat(0, 2, (first.fileno(),)), Seat(1, 2, (second.fileno(),)), first


@pytest.mark.parametrize(
    ("locked", "visible"), [(["4", "7"], "4,7"), (["GPU-a", "GPU-b"], "GPU-a,GPU-b"), ([], ""), (None, "5")]
)
def test_all_processes_of_a_gang_see_its_gpus(monkeypatch, seats, locked, visible):
    head, follower, end = seats
    monkeypatch.setattr(gang_gpus, "find_gpus", lambda _processes: locked)
    for seat in (head, follower):
        monkeypatch.setenv(VISIBLE, "5")
        gang_gpus.assign_gpus(seat)
        assert os.environ[VISIBLE] == visible
    # What process 0 sends next belongs to the link.
    end.send(b"order")
    assert os.read(follower.sockets[0], 9) == b"order"


def test_a_process_ends_if_process_0_has_ended_before_it_has_named_gpus(seats):
    _, follower, end = seats
    end.shutdown(socket.SHUT_RDWR)
    with pytest.raises(SystemExit):
        gang_gpus.assign_gpus(follower)
