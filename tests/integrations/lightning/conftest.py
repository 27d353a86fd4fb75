"""Runs of scripts with Lightning, and their comparison with an undisturbed run."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.run.processes.attempts import Attempts
from tests.run.processes.stage import EndedRun, Stage

SCRIPTS = Path(__file__).with_name("scripts")
PRELOADED = ("lightning.pytorch", "sklearn.datasets", "rich.table", "elastane.integrations.lightning")


@pytest.fixture(scope="session")
def libraries() -> None:
    """Import the library before `frozen_heap`, so that no run looks through its objects."""
    from . import modules  # noqa: F401


@pytest.fixture(scope="session")
def play(stage: Stage) -> Callable[..., EndedRun]:
    """Return `Stage.play` for the scripts of this folder."""
    stage.preload(*PRELOADED)

    def play_script(script: str, *args: str, **options: object) -> EndedRun:
        return stage.play(*args, script=SCRIPTS / script, **options)

    return play_script


@pytest.fixture(scope="session")
def play_reference(play: Callable[..., EndedRun]) -> Callable[..., EndedRun]:
    """Return a function that trains one undisturbed worker, once for the same arguments."""
    return cache(play)


@pytest.fixture
def attempts(stage: Stage, tmp_path: Path):
    """A run in a process of its own, to be killed and resumed."""
    stage.preload(*PRELOADED)
    with Attempts(stage, tmp_path) as run:
        yield run


@pytest.fixture(scope="session")
def assert_equal() -> Callable[[EndedRun, EndedRun], None]:
    """Return a function that asserts that a disturbed run ended as the undisturbed one did."""

    def check(ended: EndedRun, expected: EndedRun) -> None:
        assert ended.outcome.code == 0, ended.describe()
        assert ended.losses == expected.losses, ended.describe()
        assert ended.messages == expected.messages, ended.describe()
        assert ended.model_digest == expected.model_digest, ended.describe()
        assert [line.logged for line in ended.run.ledger] == [line.logged for line in expected.run.ledger]
        assert ended.verdict.problems == (), ended.describe()
        assert not ended.find_events("worker.failed"), ended.describe()

    return check
