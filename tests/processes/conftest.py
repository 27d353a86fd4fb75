"""One warm process for the session, runs staged from it, and the quiet run they are all compared with."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from elastane.agent.environment import worker_environment

from .lives import Lives
from .stage import Ended, Stage, eventually


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("warm") / "socket"
    process = subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("warm_process.py")), str(path)],
        stdin=subprocess.PIPE,
        env=worker_environment(os.environ | {"OPENBLAS_NUM_THREADS": "1"}, threads=1),
    )
    try:
        eventually(lambda: path.exists() or process.poll() is not None, "the warm process listens")
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


@pytest.fixture(scope="session")
def quiet(stage: Stage) -> Callable[..., Ended]:
    """A run of one worker to which nothing happens, once per length."""

    @cache
    def play(steps: int) -> Ended:
        return stage.play(f"--steps={steps}")

    return play


@pytest.fixture(scope="session")
def assert_undisturbed(quiet: Callable[..., Ended]) -> Callable[[Ended], None]:
    """It finished, and nobody could tell its bytes from those of the quiet run."""

    def check(ended: Ended) -> None:
        assert ended.over.code == 0, ended.story()
        expected = quiet(len(ended.run.ledger))
        assert ended.losses == expected.losses, ended.story()
        assert ended.digests == expected.digests, ended.story()
        assert ended.said == expected.said
        assert ended.model == expected.model
        assert ended.verdict.problems == ()
        assert len(ended.events("run.finished")) == 1
        assert not ended.events("worker.failed"), ended.story()

    return check


@pytest.fixture
def lives(stage: Stage, tmp_path: Path) -> Iterator[Lives]:
    """A run in a process of its own, to be killed and resumed."""
    with Lives(stage, tmp_path) as run:
        yield run


@pytest.fixture(scope="session")
def assert_as_if_nothing_happened(quiet: Callable[..., Ended]) -> Callable[[Ended], None]:
    """After any number of lives it finished, and nobody could tell its bytes from those of the quiet run."""

    def check(ended: Ended) -> None:
        assert ended.over.code == 0, ended.story()
        expected = quiet(len(ended.run.ledger))
        assert ended.losses == expected.losses, ended.story()
        assert ended.digests == expected.digests, ended.story()
        assert ended.model == expected.model, ended.story()
        assert ended.verdict.problems == (), ended.story()
        # What is done again is said again, in the same words; a life that was stopped has an end of its own.
        assert set(ended.said) >= set(expected.said), ended.story()
        assert len(ended.events("run.finished")) == 1, ended.story()
        # Workers are killed, but none comes to grief by itself: the others would quietly go on without it.
        assert not ended.events("worker.failed"), ended.story()

    return check
