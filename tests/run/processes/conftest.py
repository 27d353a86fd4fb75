"""The reference run, and the comparison of other runs with it."""

import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.run.laggard import LAGGARD, find_variables

from .attempts import Attempts
from .networks import Networks, NoNetworks
from .skipping import skip_except_in_ci
from .stage import EndedRun, Stage

ON_A_LAGGARD = {
    f"test_{name}"
    for name in (
        *("a_death_in_a_step", "a_death_in_other_rounds", "several_deaths", "joining_and_leaving"),
        *("any_number_of_workers", "between_steps", "devices", "fast_convergence", "forward_caches"),
        *("control_plane", "hung_and_slow", "mixed_precision", "notices", "spot_checks", "threads"),
        *("several_nodes", "node_deaths", "resume", "gangs"),
    )
}
"""The modules with scenarios that also run on a device that lags; with `LAGGARD` in the environment every
scenario runs on one."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    name = metafunc.module.__name__.rpartition(".")[2]
    if name in ON_A_LAGGARD and "stage" in metafunc.fixturenames:
        cases = ["host", pytest.param("laggard", marks=pytest.mark.long)]
        metafunc.parametrize("device", cases, indirect=True)


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers exchange sums and state on a device that lags, if a parameter says so."""
    if getattr(request, "param", "host") == "laggard":
        for name, text in find_variables(zlib.crc32(request.node.nodeid.encode())).items():
            monkeypatch.setenv(name, text)


@pytest.fixture(scope="session")
def play_reference(stage: Stage) -> Callable[..., EndedRun]:
    """Return a function that trains one undisturbed worker for some steps, once for each number of steps."""

    @cache
    def play(steps: int) -> EndedRun:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv(LAGGARD, raising=False)
            return stage.play(f"--steps={steps}")

    return play


@pytest.fixture(scope="session")
def assert_equals_reference(play_reference: Callable[..., EndedRun]) -> Callable[[EndedRun], None]:
    """Return a function that asserts that a run finished with the bytes of the reference run."""

    def check(ended: EndedRun, *, unfit: str = "") -> None:
        assert ended.outcome.code == 0, ended.describe()
        expected = play_reference(len(ended.run.ledger))
        assert ended.losses == expected.losses, ended.describe()
        assert ended.digests == expected.digests, ended.describe()
        assert ended.messages == expected.messages
        assert ended.model_digest == expected.model_digest
        assert ended.verdict.problems == ()
        assert len(ended.find_events("run.finished")) == 1
        failed = {event.detail.get("node", "first") for event in ended.find_events("worker.failed")}
        assert failed == ({unfit} if unfit else set()), ended.describe()

    return check


@pytest.fixture
def networks(request: pytest.FixtureRequest) -> Iterator[Networks]:
    """A hub and two machines, each with a network of its own; a parameter has further arguments."""
    try:
        with Networks(2, **getattr(request, "param", {})) as made:
            yield made
    except NoNetworks as error:
        skip_except_in_ci(str(error))


@pytest.fixture
def attempts(stage: Stage, tmp_path: Path) -> Iterator[Attempts]:
    """A run in a process of its own, to be killed and resumed."""
    with Attempts(stage, tmp_path) as run:
        yield run


@pytest.fixture(scope="session")
def assert_attempts_equal_reference(play_reference: Callable[..., EndedRun]) -> Callable[[EndedRun], None]:
    """Return a function that asserts the same of a run of several attempts."""

    def check(ended: EndedRun) -> None:
        assert ended.outcome.code == 0, ended.describe()
        expected = play_reference(len(ended.run.ledger))
        assert ended.losses == expected.losses, ended.describe()
        assert ended.digests == expected.digests, ended.describe()
        assert ended.model_digest == expected.model_digest, ended.describe()
        assert ended.verdict.problems == (), ended.describe()
        # Repeated steps print their messages again; a stopped attempt prints a last digest of its own.
        assert set(ended.messages) >= set(expected.messages), ended.describe()
        assert len(ended.find_events("run.finished")) == 1, ended.describe()
        # Tests kill workers, but no worker may fail by itself: the others would train on without it.
        assert not ended.find_events("worker.failed"), ended.describe()

    return check
