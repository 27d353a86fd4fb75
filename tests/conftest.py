"""Fixtures of tests in several folders, and the lock that keeps tests with processes apart."""

import fcntl
import functools
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
import typer.main
import typer.testing
from alembic import command

from elastane.run.agent.environment import THREAD_VARIABLES, build_worker_environment
from elastane.run.worker.compiler import postpone_compiler

from . import draws, houses, times
from .run.processes.stage import Stage
from .waiting import wait_until

FIRST_LOCK = Path(__file__)
SECOND_LOCK = Path(__file__).parent / "run" / "processes" / "conftest.py"
LOCK = pytest.StashKey[IO[str]]()
SET_BY_LIBRARIES = {
    "CUBLAS_WORKSPACE_CONFIG",
    "PYTEST_CURRENT_TEST",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "TORCHINDUCTOR_CACHE_DIR",
}
WARM_PROCESS = Path(__file__).parent / "run" / "processes" / "warm_process.py"


def pytest_addoption(parser, pluginmanager):
    for plugin in (draws, houses, times):
        pluginmanager.register(plugin)
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="rewrite transcripts and generated pages with the results of this run",
    )


def pytest_configure():
    """Use one thread per process, before any test imports torch or NumPy; collect no garbage yet.

    Several test processes share the cores. Threads of one that wait for each other would use up the time of
    the others: three processes on two cores took 40 % longer with two threads each. During the collection of
    tests nearly all objects stay, and looking for garbage among them took a third of its CPU time.
    """
    gc.disable()
    for variable in (*THREAD_VARIABLES, "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, "1")


def is_alone(item) -> bool:
    return item is not None and item.get_closest_marker("alone") is not None


def pytest_collection_modifyitems(items):
    """Begin with the tests marked `alone`, one after the other: the others wait for them once.

    Those marked `early` follow, so that no process is still at one of them when the others have ended.
    """
    items.sort(key=lambda item: (not is_alone(item), item.get_closest_marker("early") is None))


def pytest_collection_finish():
    """Begin the tests: as in a worker, optimizers do not load torch's compiler."""
    if "torch" in sys.modules:
        postpone_compiler()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """Run tests with processes beside each other, and those marked `alone` beside no other of them.

    Each test holds the second lock, shared or, if it is marked `alone`, alone. A test that waits for the
    second lock holds the first one, so that no other test overtakes it. Two existing files serve as locks.
    """
    if item.get_closest_marker("processes") is None:
        return (yield)
    stash = item.session.stash
    if LOCK not in stash:
        with FIRST_LOCK.open() as first:
            stash[LOCK] = SECOND_LOCK.open()
            fcntl.flock(first, fcntl.LOCK_EX)
            fcntl.flock(stash[LOCK], fcntl.LOCK_EX if is_alone(item) else fcntl.LOCK_SH)
    try:
        return (yield)
    finally:
        if not (is_alone(item) and is_alone(nextitem)):
            stash[LOCK].close()
            del stash[LOCK]


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """Fail a test that leaves variables behind: the programs of later tests would inherit them."""
    before = dict(os.environ)
    yield
    changed = {name for name, _ in before.items() ^ os.environ.items()} - SET_BY_LIBRARIES
    left = {name for name in changed if not name.startswith("MLFLOW_")}
    assert not left, f"the test left {sorted(left)} in the environment"


@pytest.fixture(autouse=True, scope="session")
def command_tree() -> Iterator[None]:
    """Build the tree of all commands once; typer's runner builds it for each command, which takes 35 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(autouse=True, scope="session")
def one_migration_at_a_time() -> Iterator[None]:
    """Keep migrations apart: alembic has one state for its process, and two threads at once corrupt it.

    A tracker of one test may still prepare its database in a thread when the next test opens a store.
    """
    lock, upgrade = threading.Lock(), command.upgrade

    def upgrade_alone(*given: object, **options: object) -> None:
        with lock:
            upgrade(*given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "upgrade", upgrade_alone)
        yield


@pytest.fixture(scope="module")
def frozen_heap() -> None:
    """Hide all earlier objects from `find_live_objects`, for modules whose tests train in this process.

    A run looks through all objects of its process several times. Here these are a million, of torch, pytest
    and earlier tests, and the search took most of the time of each such test.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def warm(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start the session's warm process, which forks the programs of all staged runs; return its socket."""
    path = tmp_path_factory.mktemp("warm") / "socket"
    process = subprocess.Popen(
        [sys.executable, "-P", str(WARM_PROCESS), str(path)],
        stdin=subprocess.PIPE,
        env=build_worker_environment(os.environ | {"OPENBLAS_NUM_THREADS": "1"}, threads=1),
    )
    pytestconfig.stash[times.WARM_PID] = process.pid
    try:
        wait_until(lambda: path.exists() or process.poll() is not None, "the warm process listens")
        yield path
    finally:
        process.stdin.close()
        process.wait()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELASTANE_HOME", str(root))
        yield root


@pytest.fixture(scope="session")
def stage(warm: Path, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("runs"), warm)


@pytest.fixture
def make_small_disk(tmp_path):
    """Return a function that mounts a disk of this number of bytes for one test."""
    mounted = []

    def mount(size):
        where = tmp_path / f"small-{len(mounted)}"
        where.mkdir()
        mounting = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(where)],
            check=False,
            capture_output=True,
            text=True,
        )
        if mounting.returncode:
            pytest.skip(f"a small disk cannot be mounted here: {mounting.stderr.strip()}")
        mounted.append(where)
        return where

    yield mount
    for where in mounted:
        subprocess.run(["umount", "--lazy", str(where)], check=True)
