"""The scripts of tools/, which neither mypy nor another test covers as a whole."""

import runpy
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.mark.parametrize("path", sorted(TOOLS.glob("*.py")), ids=lambda path: path.stem)
def test_a_tool_imports_only_names_that_exist(path):
    runpy.run_path(str(path))
