"""The draw of a landing: the long tests that it runs, and the seeds of tests that draw their cases.

All long tests would take most of an hour. `make test DRAW=COMMIT` runs a sixteenth of them beside all short
tests, and both play histories of new seeds. The commit decides which: another commit tries others, and the
same one repeats them.
"""

from collections.abc import Sequence

import pytest

SLICES = 16
SEEDS = 1_000_000
"""As many first seeds are possible."""
SEEDS_APART = 10_000
"""No test draws as many seeds: the seeds of two commits with different first seeds are all different."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--draw",
        metavar="COMMIT",
        help="of the long tests, run only a sixteenth, which the hash of the commit chooses with new seeds",
    )


def draw_slice(commit: str) -> int:
    """Return the slice of the long tests that a commit runs, below `SLICES`.

    Args:
        commit: its hash, or at least the first 8 digits.
    """
    return int(commit[:8], 16) % SLICES


def draw_first_seed(commit: str | None) -> int:
    """Return the seed from which a test counts its seeds; 0 without a commit."""
    return 0 if commit is None else int(commit[:8], 16) // SLICES % SEEDS * SEEDS_APART


def deal_slice(names: Sequence[str], place: int) -> frozenset[str]:
    """Return the names in one of `SLICES` slices, which contain each name once.

    Names that follow each other are in different slices, because the cases of one test take alike long.
    """
    return frozenset(sorted(names)[place::SLICES])


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let Hypothesis draw the same cases again for the same commit."""
    if (commit := config.getoption("--draw")) is not None:
        config.option.hypothesis_seed = draw_first_seed(commit)


def pytest_report_header(config: pytest.Config) -> str | None:
    commit = config.getoption("--draw")
    if commit is None:
        return None
    return (
        f"draw: slice {draw_slice(commit)} of the long tests, seeds from {draw_first_seed(commit)}; "
        f"to repeat: make test DRAW={commit[:8]}"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the long tests that are not drawn."""
    commit = config.getoption("--draw")
    if commit is None:
        return
    long = {item.nodeid for item in items if item.get_closest_marker("long") is not None}
    drawn = deal_slice(tuple(long), draw_slice(commit))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in long - drawn])
    items[:] = [item for item in items if item.nodeid not in long - drawn]


@pytest.fixture(scope="session")
def first_seed(request: pytest.FixtureRequest) -> int:
    """The seed from which tests count their seeds."""
    return draw_first_seed(request.config.getoption("--draw"))
