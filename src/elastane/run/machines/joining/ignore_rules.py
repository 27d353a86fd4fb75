"""The notation of ``.gitignore``, matched in a time that no pattern can blow up.

The usual way makes one regular expression of a line, which backtracks: some lines of a few letters take
years. Here each part between slashes is matched by `fnmatch`, which never goes back, and ``**`` likewise.
"""

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from typing import Self

import msgspec

ANY_DEPTH = "**"
_BACKSLASH = re.compile(r"\\(.)", re.DOTALL)


class IgnoreRule(msgspec.Struct, frozen=True):
    """One line of an ignore file.

    Args:
        parts: a pattern for each part of a path; None: any number of parts.
        ignores: False: a path that matches is not left out after all.
        only_folders: it matches no files.
    """

    parts: tuple[re.Pattern[str] | None, ...]
    ignores: bool
    only_folders: bool

    @classmethod
    def parse(cls, line: str) -> Self | None:
        """Return the rule of a line; None: it has none, or one that matches nothing."""
        text = line.rstrip("\r\n")
        while text.endswith(" ") and not _is_escaped(text, len(text) - 1):
            text = text[:-1]
        ignores = not text.startswith("!")
        text = text if ignores else text[1:]
        only_folders = text.endswith("/")
        text = text[:-1] if only_folders else text
        if not text or line.startswith("#") or _is_escaped(text, len(text)):
            return None
        anchored = "/" in text
        parts = text.removeprefix("/").split("/")
        if not anchored:
            parts = [ANY_DEPTH, *parts]
        if parts[-1] == ANY_DEPTH:
            # It matches all that is inside, but not the folder itself.
            parts.append("*")
        return cls(tuple(map(_compile_part, parts)), ignores, only_folders)

    def matches(self, parts: Sequence[str], *, is_folder: bool) -> bool:
        """Return whether the rule matches a path, given in its parts below the folder of the ignore file."""
        if self.only_folders and not is_folder:
            return False
        at = place = 0
        back: tuple[int, int] | None = None
        while place < len(parts):
            if at < len(self.parts) and (pattern := self.parts[at]) is None:
                at, back = at + 1, (at + 1, place)
            elif at < len(self.parts) and pattern is not None and pattern.match(parts[place]):
                at, place = at + 1, place + 1
            elif back is not None:
                # Only the last of several `**` may have to take one part more.
                at, place = back[0], back[1] + 1
                back = (at, place)
            else:
                return False
        return at == len(self.parts)


def parse_rules(lines: Iterable[str]) -> tuple[IgnoreRule, ...]:
    """Return the rules of an ignore file."""
    return tuple(rule for line in lines if (rule := IgnoreRule.parse(line)) is not None)


def find_decision(rules: Iterable[IgnoreRule], parts: Sequence[str], *, is_folder: bool) -> bool | None:
    """Return whether the last rule that matches a path leaves it out; None: no rule matches."""
    decision = None
    for rule in rules:
        if rule.ignores is not decision and rule.matches(parts, is_folder=is_folder):
            decision = rule.ignores
    return decision


def _is_escaped(text: str, end: int) -> bool:
    """Return whether an odd number of backslashes is before this place."""
    return (end - len(text[:end].rstrip("\\"))) % 2 == 1


def _compile_part(part: str) -> re.Pattern[str] | None:
    if part == ANY_DEPTH:
        return None
    # In the notation of `fnmatch`, which has no backslashes; it treats `**` as `*`.
    shell = _BACKSLASH.sub(lambda found: f"[{found[1]}]" if found[1] in "*?[" else found[1], part)
    return re.compile(translate(shell.replace("[^", "[!")))
