"""Tests wait for what they mean with `tests/waiting.py`; whatever sleeps for another reason names it."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
WORDS = "# not a wait: "
APART = (
    "waiting.py",
    "cluster/controller/controller_kills.py",  # a program of its own, which imports nothing from here
    "run/processes/scripts",  # workers run them
)


def is_sleep(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Name("time" | "asyncio"), attr="sleep"):
            return True
        case ast.ImportFrom(module="time" | "asyncio"):
            return any(name.name == "sleep" for name in node.names)
    return False


def find_unexplained_sleeps(text: str) -> list[int]:
    """Return the lines with a sleep that do not say what it is for."""
    lines = text.splitlines()
    found = {node.lineno for node in ast.walk(ast.parse(text)) if is_sleep(node)}
    return sorted(line for line in found if WORDS not in lines[line - 1])


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("import time\ntime.sleep(1)", [2]),
        ("import asyncio\nasync def wait():\n    await asyncio.sleep(1)", [3]),
        ("import time\npause = time.sleep", [2]),
        ("from time import monotonic, sleep", [1]),
        ("import time\ntime.sleep(1)  # not a wait: paces the steps", []),
        ("# time.sleep(1)", []),
    ],
)
def test_a_sleep_without_a_reason_is_found(text, lines):
    assert find_unexplained_sleeps(text) == lines


def test_no_test_sleeps_to_wait():
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        if not path.relative_to(TESTS).as_posix().startswith(APART)
        for line in find_unexplained_sleeps(path.read_text())
    ]
    assert found == [], f"use tests/waiting.py, or end the line with a reason: {WORDS}..."
