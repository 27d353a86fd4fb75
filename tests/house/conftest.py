"""What collection has imported, noted before the first test runs, and a heap without garbage collection."""

import gc
import sys
from collections.abc import Iterator

import pytest

IMPORTED = pytest.StashKey[tuple[str, ...]]()


def pytest_collection_finish(session):
    session.stash[IMPORTED] = tuple(sys.modules)


@pytest.fixture
def collected_modules(request) -> tuple[str, ...]:
    """The names of the modules that were imported when collection ended, in the order of their imports."""
    return request.session.stash[IMPORTED]


@pytest.fixture(autouse=True, scope="module")
def uncollected() -> Iterator[None]:
    """Collect no garbage: to look through the nodes of syntax trees costs more than the tests."""
    gc.disable()
    yield
    gc.enable()
