"""The quiet run that all staged runs are compared with."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from .attempts import Attempts
from .stage import Ended, Stage


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
def attempts(stage: Stage, tmp_path: Path) -> Iterator[Attempts]:
    """A run in a process of its own, to be killed and resumed."""
    with Attempts(stage, tmp_path) as run:
        yield run


@pytest.fixture(scope="session")
def assert_as_if_nothing_happened(quiet: Callable[..., Ended]) -> Callable[[Ended], None]:
    """After any number of attempts the run has finished with the bytes of the quiet run."""

    def check(ended: Ended) -> None:
        assert ended.over.code == 0, ended.story()
        expected = quiet(len(ended.run.ledger))
        assert ended.losses == expected.losses, ended.story()
        assert ended.digests == expected.digests, ended.story()
        assert ended.model == expected.model, ended.story()
        assert ended.verdict.problems == (), ended.story()
        # What is done again is said again, in the same words; an attempt that was stopped has an end of its
        # own.
        assert set(ended.said) >= set(expected.said), ended.story()
        assert len(ended.events("run.finished")) == 1, ended.story()
        # Workers are killed, but none comes to grief by itself: the others would quietly go on without it.
        assert not ended.events("worker.failed"), ended.story()

    return check
