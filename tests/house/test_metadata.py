"""Metadata, constraints and documents agree with each other."""

import re
import tomllib
from pathlib import Path

import elastane
from tools import write_floors, write_lowest

ROOT = Path(__file__).parents[2]


def read_project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_lowest_constraints_are_the_lower_bounds_of_pyproject():
    assert write_lowest.TARGET.read_text() == write_lowest.render(), "run tools/write_lowest.py"


def test_tools_that_users_install_have_the_same_bounds_everywhere():
    project = read_project()["project"]
    extras = project["optional-dependencies"]
    bounds = {}
    for requirement in [*project["dependencies"], *(r for found in extras.values() for r in found)]:
        name = re.split(r"[\[<>=]", requirement)[0]
        bounds.setdefault(name, set()).add(requirement.split(name, 1)[1])
    assert {name: found for name, found in bounds.items() if len(found) > 1} == {}


def test_the_measures_of_this_version_are_kept():
    assert f"\n## {elastane.__version__}\n" in (ROOT / "docs/measures.md").read_text()


def test_the_citation_has_the_version_of_the_package():
    assert f"\nversion: {elastane.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_workflow_checks_every_python_of_the_classifiers():
    classifiers = read_project()["project"]["classifiers"]
    versions = [c.rsplit(" ", 1)[1] for c in classifiers if re.search(r":: 3\.\d+$", c)]
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    assert re.findall(r'"(3\.\d+)"', re.search(r"python: \[(.*)\]", workflow).group(1)) == versions


def test_the_pages_show_the_floors_of_pyproject():
    for page in write_floors.PAGES:
        text = (ROOT / page).read_text()
        assert write_floors.MARKED.search(text), page
        assert write_floors.fill(text) == text, f"{page}: run tools/write_floors.py"


def test_every_package_of_a_run_is_on_a_floor():
    # The contracts of houses and of the cluster are exhaustive; that of a run names folders of two depths.
    run = ROOT / "src/elastane/run"
    floors = [name for floor in write_floors.read_floors("run") for name in floor]
    placed = [package for name in floors for package in run.glob(name.replace(".", "/"))]
    assert len(placed) == len(floors)
    missing = [
        path.parent
        for path in [*run.glob("*/__init__.py"), *run.glob("*/*/__init__.py")]
        if not any(path.parent.is_relative_to(one) or one.is_relative_to(path.parent) for one in placed)
    ]
    assert missing == []
