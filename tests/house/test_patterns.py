"""A pattern that should match a whole text does not match it with a line break behind it."""

import ast
import re
from pathlib import Path

import msgspec
import pytest

from elastane.run.machines.tickets.tickets import RunName, TicketId
from elastane.run.nouns.hosts import RunHost
from elastane.run.nouns.membership import Host, NodeName

SOURCE = Path(__file__).parents[2] / "src/elastane"
OF_THE_API = {"cluster/controller/rest/parameters.py", "cluster/controller/rest/logs.py"}
"""pydantic matches these with the regular expressions of Rust, in which `$` is the end of the text."""
DOLLAR = re.compile(r"(?:[^\\$]|\\.)*\$(?![a-z])", re.DOTALL)


def list_patterns(tree):
    """Yield the texts that are patterns: of `re`, of ``pattern=``, of names, and all with ``^`` first."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            of_re = ast.unparse(node.func).startswith("re.")
            arguments = (
                node.args[:1] if of_re else [key.value for key in node.keywords if key.arg == "pattern"]
            )
            for argument in arguments:
                yield from (part for part in ast.walk(argument) if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("^"):
            yield node
        elif isinstance(node, ast.Assign) and any("NAME" in ast.unparse(target) for target in node.targets):
            yield from (part for part in ast.walk(node.value) if isinstance(part, ast.Constant))


def find_dollars(path):
    found = list_patterns(ast.parse(path.read_text()))
    texts = ((node.lineno, node.value) for node in found if isinstance(node.value, str))
    return [f"{path}:{line}: {text}" for line, text in texts if DOLLAR.match(text)]


def test_patterns_end_with_the_text() -> None:
    r"""`$` matches before a line break at the end too: write `\Z`, or use `fullmatch`."""
    paths = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).as_posix() not in OF_THE_API]
    assert [line for path in paths for line in find_dollars(path)] == []


def test_the_search_finds_a_dollar(tmp_path) -> None:
    (tmp_path / "some.py").write_text(
        "A = re.compile(f'x{1}$')\nB = Meta(pattern='a$')\nC = '^x$'\nD = re.compile(r'\\$')\n"
    )
    lines = find_dollars(tmp_path / "some.py")
    assert {int(line.split(":")[1]) for line in lines} == {1, 2, 3}


@pytest.mark.parametrize(
    ("kind", "text"),
    [(Host, "a.b"), (NodeName, "a"), (NodeName, ""), (RunName, "a"), (TicketId, "0" * 8)],
)
def test_no_line_break_follows_a_name(kind, text) -> None:
    assert msgspec.convert(text, kind) == text
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(f"{text}\n", kind)


def test_no_line_break_follows_a_host() -> None:
    assert msgspec.convert({"address": "me@a"}, RunHost).host == "a"
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"address": "me@a\n"}, RunHost)
