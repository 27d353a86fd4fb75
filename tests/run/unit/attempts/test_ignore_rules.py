"""Ignore files mean what they mean to git, in a time that no pattern can blow up."""

import random
import shutil
import subprocess
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec

from elastane.run.machines.joining.ignore_rules import find_decision, parse_rules

FOLDERS = ("", "a/", "b/", "a/b/", "a/b/a/", "ab/", "b/ab/")
PATHS = [f"{folder}{file}" for folder in FOLDERS for file in ("x", "ax", "bx", "abx", "x.a", ".x", "x ")]
PIECES = ("a", "b", "x", "*", "**/", "?", "/", "[ab]", "[!a]", "[^b]", ".", " ", "\\ ", "#", "\\#")


def list_left_out(lines, paths):
    """Return the paths that the rules leave out, or one of their folders."""
    rules = parse_rules(lines)
    found = set()
    for path in paths:
        parts = PurePosixPath(path).parts
        ends = range(1, len(parts) + 1)
        if any(find_decision(rules, parts[:end], is_folder=end < len(parts)) for end in ends):
            found.add(path)
    return found


def test_the_notation_of_git() -> None:
    lines = [
        "# a comment",
        "",
        "*.log",
        "!keep.log",
        "/top",
        "folder/",
        "a/**/z",
        "in/**",
        "deep/**/",
        r"\!odd",
        "tail\\ ",
    ]
    paths = ["x.log", "d/x.log", "keep.log", "top", "d/top", "folder/x", "d/folder/x", "folder.py", "a/z"]
    paths += ["a/b/c/z", "in/x", "in", "!odd", "tail ", "tail", "deep/x", "deep/d/x"]
    kept = {"keep.log", "d/top", "folder.py", "in", "tail", "deep/x"}
    assert list_left_out(lines, paths) == set(paths) - kept


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_leaves_out_the_same(tmp_path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for path in PATHS:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    draw = random.Random(4)
    for _ in range(60):
        lines = ["".join(draw.choices(PIECES, k=draw.randint(1, 5))) for _ in range(draw.randint(1, 3))]
        lines = [draw.choice(("", "", "!")) + line for line in lines]
        (tmp_path / ".gitignore").write_text("\n".join(lines) + "\n")
        options = ["ls-files", "--others", "--exclude-standard", "-z"]
        kept = subprocess.run(["git", "-C", tmp_path, *options], capture_output=True, check=True, text=True)
        assert set(PATHS) - list_left_out(lines, PATHS) == set(PATHS) & set(kept.stdout.split("\0")), lines


@given(st.lists(st.lists(st.sampled_from(("a", "b", "x", "*", "?", "/", ".")), max_size=6).map("".join)))
def test_another_reader_of_the_notation_agrees(lines) -> None:
    lines = [line for line in lines if "//" not in line and "***" not in line and line.strip("/")]
    # Only here git reads "a/**/" as we do: as the folders in a, not its files.
    lines = [line for line in lines if not line.endswith("**/")]
    spec = GitIgnoreSpec.from_lines(lines)
    assert list_left_out(lines, PATHS) == set(spec.match_files(PATHS)), lines


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("a*" * 60 + "b", "a" * 250),
        ("*a" * 60 + "*b", "a" * 250),
        ("?*" * 60 + "b", "a" * 250),
        ("[a-z]*" * 60 + "b", "a" * 250),
        ("**/a/" * 60 + "b", "a/" * 500 + "c"),
        ("**/*a*/" * 60 + "b", "aaa/" * 500 + "c"),
    ],
)
def test_no_pattern_takes_for_ever(line, path) -> None:
    # Backtracking would take longer than the age of the universe.
    assert list_left_out([line], [path]) == set()


@given(st.lists(st.text(max_size=20), max_size=5), st.text(min_size=1, max_size=20))
def test_any_line_is_a_rule_or_none(lines, name) -> None:
    find_decision(parse_rules(lines), (name,), is_folder=False)
