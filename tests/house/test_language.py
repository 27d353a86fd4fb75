"""Names and prose in plain English.

The rules are those of `tools/measure_house.py`, which also prints each place:
`python tools/measure_house.py --list scheduler`. `limits/PACKAGE.json` counts what broke a rule before the
rule was made. No package may exceed its limits; a rule without a limit may not be broken at all. After a
clean-up, lower the limits with `python tools/measure_house.py --lower` and commit them. Never raise one.
A verb that is missing goes into `verbs.txt`, an exception into the rule.
"""

import pytest

from tools import find_stale_names, measure_house

LIMITS = measure_house.read_limits()
PACKAGES = {
    path.name for path in (measure_house.ROOT / "src/elastane").iterdir() if (path / "__init__.py").exists()
}
PACKAGES |= {"elastane", "tests", "benchmarks", "examples", "tools", "docs"}


@pytest.fixture(scope="module")
def modules():
    return measure_house.read_modules(measure_house.ROOT)


@pytest.fixture(scope="module")
def source(modules):
    return list(filter(measure_house.is_source, modules))


def test_no_package_is_further_from_plain_english_than_before(modules):
    # One test for all packages: each process of pytest-xdist that runs a part would read the tree again.
    found = measure_house.find_all(measure_house.ROOT, modules)
    assert {package for packages in found.values() for package in packages} <= PACKAGES
    assert LIMITS.keys() <= PACKAGES
    worse = []
    for package in sorted(PACKAGES):
        for rule, packages in found.items():
            places, limit = packages.get(package, []), LIMITS.get(package, {}).get(rule, 0)
            if len(places) > limit:
                worse += [f"{package}, {rule}: {len(places)}, at most {limit}"]
                worse += [f"    {place}" for place in places]
    assert not worse, "\n".join(worse)


@pytest.mark.parametrize(
    ("docstring", "good"),
    [
        ("Return the newest valid checkpoint.", True),
        ("Lists every blocker, whatever its owner.", True),
        ("Tries again.", True),
        ("The newest valid checkpoint.", False),
        ("What is kept in vain for whom.", False),
    ],
)
def test_a_docstring_begins_with_a_verb(docstring, good):
    assert measure_house.begins_with_verb(docstring) is good


def test_each_name_in_backticks_exists(source):
    """A name that only another project defines goes into `find_stale_names.FOREIGN`."""
    stale = find_stale_names.find_stale_names(source)
    assert not stale, "\n".join(["rename them, or reword:", *stale])


@pytest.fixture(scope="module")
def index(source):
    return find_stale_names.build_index(source)


STALE = {
    "PlannedJob.grants": False,
    "PlannedJob.granted_workers": True,
    "elastane.cluster.scheduler.plan": False,
    "elastane.cluster.scheduler.planner": True,
    "holds.find_futile_holders": False,
    "holds.list_futile_holders": True,
    "minRunTimeS": False,
    "minRunTimeH": True,
    "--workers": False,
    "--labourers": True,
    "scheduler/plan.py": False,
    "controller/plan.py": True,
    "8.4 s": False,
}


def test_stale_names_are_found_and_no_others(index):
    assert {text: find_stale_names.is_stale(text, set(), index) for text in STALE} == STALE
