"""The draw of a landing: which tests it runs of those that take long, and from which seeds they draw.

All tests would take an hour. `make test DRAW=COMMIT` runs the unit tests and the rules of the house whole,
a sixteenth of the long tests, a quarter of the tests with processes in each folder, and of each other test a
quarter of its cases. Hypothesis draws half of its examples, and the bulk of the histories is of new seeds.
The commit decides: another one tries others, and the same one repeats them.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable

import pytest
from hypothesis import HealthCheck, settings

SLICES = 16
QUARTERS = 4
SETTINGS = "_hypothesis_internal_use_settings"
"""The attribute of a test that has its settings of Hypothesis."""
WHOLE = re.compile(r"tests/(house|\w+/unit)/")
"""The tests here that are neither long nor have processes cost little, and all of their cases run."""
SEEDS = 1_000_000
"""As many first seeds are possible."""
SEEDS_APART = 10_000
"""No test draws as many seeds: the seeds of two commits with different first seeds are all different."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--draw",
        metavar="COMMIT",
        help="run the unit tests, a sixteenth of the long tests and a quarter of the others; the hash of the "
        "commit chooses them, and the seeds",
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


def deal_slice(names: Collection[str], place: int) -> frozenset[str]:
    """Return the names in one of `SLICES` slices, which contain each name once.

    Names that follow each other are in different slices, because the cases of one test take alike long.
    """
    return frozenset(sorted(names)[place::SLICES])


def find_folder(name: str) -> str:
    return name.partition("::")[0].rpartition("/")[0]


def find_test(name: str) -> str:
    """Return a name without the case."""
    return name.partition("[")[0]


def deal_quarter(names: Collection[str], place: int, find_group: Callable[[str], str]) -> frozenset[str]:
    """Return a quarter of each group of names, at least one.

    Args:
        names: the tests, as ``FOLDER/FILE::TEST[CASE]``.
        place: which quarter, modulo 4.
        find_group: returns the group of a name.
    """
    groups = defaultdict(list)
    for name in sorted(names):
        groups[find_group(name)].append(name)
    return frozenset(
        name for group in groups.values() for name in group[place % min(len(group), QUARTERS) :: QUARTERS]
    )


def halve_examples(tests: Iterable[Callable[..., object]]) -> None:
    """Let Hypothesis draw half of the examples of each of these tests."""
    for test in tests:
        if (known := getattr(test, SETTINGS, None)) is not None:
            setattr(test, SETTINGS, settings(known, max_examples=-(-known.max_examples // 2)))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let Hypothesis draw the same cases again for the same commit, and take the time it needs.

    How long a machine takes for a case says nothing about the code.
    """
    settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy machine")
    if (commit := config.getoption("--draw")) is not None:
        config.option.hypothesis_seed = draw_first_seed(commit)


def pytest_report_header(config: pytest.Config) -> str | None:
    commit = config.getoption("--draw")
    if commit is None:
        return None
    drawn = f"slice {draw_slice(commit)} of the tests that take long, seeds from {draw_first_seed(commit)}"
    return f"draw: {drawn}; to repeat: make test DRAW={commit[:8]}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is not drawn."""
    commit = config.getoption("--draw")
    if commit is None:
        return
    place = draw_slice(commit)
    names, long, processes = (
        {item.nodeid for item in items if mark is None or item.get_closest_marker(mark) is not None}
        for mark in (None, "long", "processes")
    )
    processes -= long
    whole = {name for name in names - long - processes if WHOLE.match(name)}
    drawn = whole | deal_slice(long, place)
    drawn |= deal_quarter(processes, place, find_folder)
    drawn |= deal_quarter(names - long - processes - whole, place, find_test)
    left_out = names - drawn
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = [item for item in items if item.nodeid not in left_out]
    halve_examples({item.function for item in items if isinstance(item, pytest.Function)})


@pytest.fixture(scope="session")
def first_seed(request: pytest.FixtureRequest) -> int:
    """The seed from which tests count their seeds."""
    return draw_first_seed(request.config.getoption("--draw"))
