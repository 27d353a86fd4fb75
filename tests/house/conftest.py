"""What collection has imported, noted before the first test runs."""

import sys

import pytest

IMPORTED = pytest.StashKey[tuple[str, ...]]()


def pytest_collection_finish(session):
    session.stash[IMPORTED] = tuple(sys.modules)


@pytest.fixture
def collected_modules(request) -> tuple[str, ...]:
    """The names of the modules that were imported when collection ended, in the order of their imports."""
    return request.session.stash[IMPORTED]
