"""The houses of Elastane: which of them a file belongs to, and which tests a change needs.

A change in one house runs all of its tests, those of the rules, and a sixteenth of the others, as a smoke
test. A change that every house may notice runs all tests.
"""

import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from .draws import deal_slice, draw_slice

ROOT = Path(__file__).parents[1]

PREFIXES = {
    "run": (
        "src/elastane/agent/",
        "src/elastane/attempts/",
        "src/elastane/checkpointing/",
        "src/elastane/claims/",
        "src/elastane/coordinator/",
        "src/elastane/observability/",
        "src/elastane/protocol/",
        "src/elastane/runtime/",
        "src/elastane/storage/",
        "src/elastane/trackers/",
        "tests/claims/",
        "tests/examples/",
        "tests/idioms/",
        "tests/processes/",
        "tests/runtime/",
        "tests/simulation/",
        "tests/simulator/",
        "tests/storage/",
        "tests/unit/agent/",
        "tests/unit/attempts/",
        "tests/unit/coordinator/",
        "tests/unit/observability/",
        "tests/unit/protocol/",
        "tests/unit/trackers/",
        "examples/",
    ),
    "cluster": (
        "src/elastane/client/",
        "src/elastane/controller/",
        "src/elastane/engines/",
        "src/elastane/scheduler/",
        "tests/controller/",
        "tests/job_lifecycles.py",
        "tests/processes/small_cluster.py",
        "tests/processes/test_a_controller_that_dies.py",
        "tests/processes/test_a_run_that_grows_by_itself.py",
        "tests/processes/test_jobs_of_a_cluster.py",
        "tests/processes/test_jobs_of_other_users.py",
        "tests/processes/test_local_engine.py",
        "tests/processes/test_pilot.py",
        "tests/processes/test_unmodified_jobs.py",
        "tests/scheduling/",
        "tests/unit/client/",
        "tests/unit/controller/",
        "tests/unit/engines/",
        "tests/unit/scheduler/",
    ),
    "integrations": (
        "src/elastane/compat/",
        "src/elastane/datasets/",
        "src/elastane/integrations/",
        "src/elastane/recipes/",
        "tests/compat/",
        "tests/integrations/",
        "tests/processes/test_horovod_scripts.py",
        "tests/processes/test_quick_starts_of_trl.py",
        "tests/processes/test_trainers_of_transformers.py",
        "tests/recipes/",
        "tests/unit/datasets/",
    ),
    "cli": ("src/elastane/cli/", "tests/unit/cli/"),
    "rules": (
        "benchmarks/",
        "docs/",
        "tests/house/",
        "tests/properties/",
        "tests/unit/benchmarks/",
        "tools/",
    ),
    "common": ("src/elastane/", "tests/"),
}
"""The folders and files of each house; the longest prefix decides.

`rules` are the tests that every change runs, `common` is what all houses use.
"""


def find_house(path: str) -> str:
    """Return the house of a file, by its path relative to the repository."""
    if path.endswith(".md"):
        return "rules"
    fitting = [
        (len(prefix), house)
        for house, prefixes in PREFIXES.items()
        for prefix in prefixes
        if path.startswith(prefix)
    ]
    return max(fitting)[1] if fitting else "common"


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
