"""Write the floor plan of pyproject.toml into the pages that show it, between two marks.

The contract "floors" of import-linter is the plan; `lint-imports` holds the code to it and a test the pages.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md")
BEGIN, END = "<!-- floors: written by tools/write_floors.py -->", "<!-- end of floors -->"
MARKED = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)


def read_floors() -> list[list[str]]:
    """Return the packages of each floor, the highest floor first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract["name"].startswith("floors")]
    return [[name.strip().removeprefix("elastane.") for name in layer.split("|")] for layer in layers]


def render() -> str:
    """Return the marked block."""
    lines = ["   ".join(floor) for floor in read_floors()]
    return "\n".join([BEGIN, "```", *lines, "```", END])


def fill(text: str) -> str:
    """Return a page with the plan of today between its marks; a page without marks stays as it is."""
    return MARKED.sub(lambda _: render(), text)


if __name__ == "__main__":
    for page in PAGES:
        path = ROOT / page
        path.write_text(fill(path.read_text()))
