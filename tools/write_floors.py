"""Write the floor plans of pyproject.toml into the pages that show them, between two marks.

Contracts of import-linter are the plans; `lint-imports` holds the code to them and a test the pages.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "docs/architecture/run.md", "docs/architecture/cluster.md")
CONTRACTS = {"houses": "three houses", "run": "inside a run", "cluster": "inside a cluster"}
"""How the name of the contract of each plan begins."""
MARKED = re.compile(
    r"(<!-- floors of (\w+): written by tools/write_floors.py -->\n).*?(<!-- end of floors -->)", re.DOTALL
)


def read_floors(plan: str) -> list[list[str]]:
    """Return the packages of each floor, the highest floor first, relative to the package of the plan."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    [layers] = [c["layers"] for c in contracts if c["name"].startswith(CONTRACTS[plan])]
    return [[name.strip().removeprefix(f"elastane.{plan}.") for name in layer.split("|")] for layer in layers]


def render(plan: str) -> str:
    """Return a plan as a block of text."""
    return "\n".join(["```", *("   ".join(floor) for floor in read_floors(plan)), "```", ""])


def fill(text: str) -> str:
    """Return a page with the plans of today between its marks; a page without marks stays as it is."""
    return MARKED.sub(lambda found: found[1] + render(found[2]) + found[3], text)


if __name__ == "__main__":
    for page in PAGES:
        path = ROOT / page
        path.write_text(fill(path.read_text()))
