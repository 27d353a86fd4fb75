"""The tables of options in docs/cli.md, generated from the commands: ``make docs-cli`` writes them again."""

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from elastane.cli.main import app

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"
HEADING = re.compile(r"^(##+) (.*)$", re.MULTILINE)
COMMAND = re.compile(r"`elastane ([a-z|]+(?: [a-z|]+)*)")
"""The words of a command in a heading, up to its arguments: ``pool|team set|list``."""
BLOCK = re.compile(r"<!-- options: (?P<command>[a-z ]+) -->\n.*?<!-- end -->", re.DOTALL)
LEFT_OUT = {"help", "as_json"}
"""Options that every command has; the page describes them once."""
MOST_COMMANDS, MOST_OPTIONS = 100, 307
"""Lower them when a command or an option goes."""


@cache
def build_commands() -> Any:
    return get_command(app)


def find_command(words: str) -> Any:
    command = build_commands()
    for word in words.split():
        command = command.commands[word]
    return command


def list_options(words: str) -> list[Any]:
    params = find_command(words).params
    options = [one for one in params if one.param_type_name == "option" and not one.hidden]
    return [one for one in options if one.name not in LEFT_OUT]


def format_names(option: Any) -> str:
    names = sorted((*option.opts, *option.secondary_opts), key=lambda name: (name.startswith("--"), name))
    names = [*option.opts, *option.secondary_opts] if option.secondary_opts else names
    if option.is_flag:
        return " or ".join(f"`{name}`" for name in names)
    *short, long = names
    return " or ".join(f"`{name}`" for name in (*short, f"{long} {option.metavar or 'VALUE'}"))


def format_meaning(option: Any) -> str:
    default = option.default
    shown = option.show_default and default not in (None, False, "", ()) and not callable(default)
    return option.help + (f" Default: {default}." if shown else "")


def format_table(words: str) -> Iterator[str]:
    yield "| option | meaning |"
    yield "|---|---|"
    panel = ""
    options = list_options(words)
    for option in sorted(options, key=lambda one: bool(one.rich_help_panel)):
        if (option.rich_help_panel or "") != panel:
            panel = option.rich_help_panel
            yield f"| *{panel}* | |"
        cells = (format_names(option), format_meaning(option).replace("[", r"\[").replace("*", r"\*"))
        yield "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def format_block(match: re.Match[str]) -> str:
    lines = (f"<!-- options: {match['command']} -->", *format_table(match["command"]), "<!-- end -->")
    return "\n".join(lines)


def test_the_tables_of_options_on_the_page_are_up_to_date(request: pytest.FixtureRequest):
    text = PAGE.read_text()
    generated = BLOCK.sub(format_block, text)
    if request.config.getoption("--rewrite"):
        PAGE.write_text(generated)
    else:
        assert generated == text, "docs/cli.md is out of date: run make docs-cli, and read the difference"


def list_commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, inner in command.commands.items():
        if hasattr(inner, "commands"):
            yield from list_commands(inner, (*path, name))
        else:
            yield " ".join((*path, name)), inner


def list_sections(page: str) -> Iterator[tuple[str, str]]:
    """Yield the commands that the headings of the page name, each with the text of its section."""
    headings = list(HEADING.finditer(page))
    for place, heading in enumerate(headings):
        ends = (later.start() for later in headings[place + 1 :] if len(later[1]) <= len(heading[1]))
        section = page[heading.start() : next(ends, len(page))]
        for words in COMMAND.findall(heading[2]):
            for names in product(*(word.split("|") for word in words.split())):
                yield " ".join(names), section


def test_the_section_of_every_command_has_its_options():
    sections: dict[str, str] = defaultdict(str)
    for words, section in list_sections(PAGE.read_text()):
        sections[words] += section
    commands = dict(list_commands(get_command(app)))
    assert commands.keys() <= sections.keys()
    missing = [
        f"{words} {name}"
        for words in commands
        for name in (max(option.opts, key=len) for option in list_options(words))
        if not re.search(rf"{name}(?![\w-])", sections[words])
    ]
    assert missing == []


def test_the_command_line_does_not_grow():
    commands = dict(list_commands(get_command(app)))
    options = sum(len(list_options(words)) for words in commands)
    assert (len(commands), options) == (MOST_COMMANDS, MOST_OPTIONS), (
        "An option or command that is added replaces one; when one goes, lower the limit."
    )
