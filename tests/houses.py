"""The houses of Elastane: which of them a file belongs to, and which tests a change needs.

A change in one house runs all of its tests, those of the rules, and a sixteenth of the others, as a smoke
test. A change that every house may notice runs all tests.
"""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from .draws import deal_slice, draw_slice

ROOT = Path(__file__).parents[1]

HOUSES = ("run", "cluster", "integrations", "cli", "common")
"""Packages and folders of tests; `common` is what all houses use, files outside of them included."""
RULES = ("benchmarks/", "docs/", "tests/house/", "tools/")
"""Every change runs the tests of these."""
FOLDER = re.compile(r"(?:src/elastane|tests)/(\w+)/")


def find_house(path: str) -> str:
    """Return the house of a file, by its path relative to the repository; every change touches `rules`."""
    if path.endswith(".md") or path.startswith(RULES):
        return "rules"
    if path.startswith("examples/"):
        return "run"
    folder = FOLDER.match(path)
    return folder[1] if folder and folder[1] in HOUSES else "common"


def choose_tests(names: Iterable[str], changed: Iterable[str], place: int) -> frozenset[str]:
    """Return the tests that a change needs.

    Args:
        names: the tests, each with the path of its file before ``::``.
        changed: the paths of the changed files.
        place: the slice of all other tests that runs too.
    """
    names, touched = frozenset(names), {find_house(path) for path in changed}
    if "common" in touched:
        return names
    needed = {name for name in names if find_house(name.partition("::")[0]) in {*touched, "rules"}}
    return needed | deal_slice(tuple(names - needed), place)


def list_changed_files(revision: str) -> list[str]:
    """Return the files that differ from a revision of git, and those that git does not know yet."""
    commands = (("diff", "--name-only", revision), ("ls-files", "--others", "--exclude-standard"))
    outputs = [
        subprocess.run(("git", *command), cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for command in commands
    ]
    return "".join(outputs).split("\n")[:-1]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--changed-since",
        metavar="REVISION",
        help="run the tests of the houses that changed since this revision of git, and a smoke of the others",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that the change does not need."""
    revision = config.getoption("--changed-since")
    if revision is None:
        return
    names = [item.nodeid for item in items]
    place = draw_slice(config.getoption("--draw") or "0")
    chosen = choose_tests(names, list_changed_files(revision), place)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
    items[:] = [item for item in items if item.nodeid in chosen]
