"""Write `constraints-lowest.txt`: the oldest version of each package that pyproject.toml admits.

`make lowest` installs these and runs the unit tests, so each lower bound is tested. The tools of `[dev]` and
`[docs]` are left out, because no user installs them. torch is left out as in `constraints.txt`:
`make lowest TORCH=...` chooses its build.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "constraints-lowest.txt"
HEADER = """\
# The oldest versions that pyproject.toml admits, for `make lowest`. Written by tools/write_lowest.py.
# torch is left out: `make lowest TORCH=...` chooses its build.
"""
NOT_INSTALLED_BY_USERS = {"dev", "docs"}


def read_requirements(project: dict[str, object]) -> list[str]:
    """Return the requirements of a `[project]` table that users install, extras included."""
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    always = project["dependencies"]
    assert isinstance(always, list)
    return [
        *always,
        *(r for name, found in extras.items() if name not in NOT_INSTALLED_BY_USERS for r in found),
    ]


def find_lowest(requirements: list[str]) -> dict[str, str]:
    """Map each package to its lower bound.

    Raises:
        ValueError: a requirement has no lower bound, or two extras disagree about one.
    """
    lowest: dict[str, str] = {}
    for requirement in requirements:
        match = re.fullmatch(r"([A-Za-z0-9_.-]+)(?:\[\w+\])?>=([0-9.]+)(?:,<[0-9.]+)?", requirement)
        if match is None:
            raise ValueError(f"no lower bound: {requirement}")
        name, version = match.groups()
        if lowest.setdefault(name, version) != version:
            raise ValueError(f"two lower bounds of {name}: {lowest[name]} and {version}")
    return lowest


def render() -> str:
    """Return the text of `constraints-lowest.txt`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lowest = find_lowest(read_requirements(project))
    lines = (f"{name}=={version}\n" for name, version in sorted(lowest.items()) if name != "torch")
    return HEADER + "".join(lines)


if __name__ == "__main__":
    TARGET.write_text(render())
