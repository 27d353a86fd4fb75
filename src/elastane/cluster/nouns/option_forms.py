"""The forms of the options of engines and pools: what a correct value looks like, in words and as a check.

The options that several kinds of engines have are here too.
"""

import re
import shlex
from collections.abc import Callable

import msgspec

from elastane.common.durations import parse_duration_s

LONGEST_ANSWER_S = 60.0
"""An answer that takes longer holds up others."""


class TextForm(msgspec.Struct, frozen=True):
    """A form of texts.

    Args:
        words: complete a sentence such as ``'x' is not a path``.
        fits: returns something true for each text with this form.
    """

    words: str
    fits: Callable[[str], object]


def make_form(words: str, pattern: str) -> TextForm:
    """Return the form of all texts that a pattern matches as a whole."""
    return TextForm(words, re.compile(pattern, re.ASCII).fullmatch)


class EngineOption(msgspec.Struct, frozen=True, kw_only=True):
    """An option of an engine, or of a pool in an engine.

    Args:
        name: its key in the document. The command line spells it with hyphens.
        metavar: stands for the value in the help of the command line.
        help: what the option sets, as one line, with the default if there is one.
        example: a correct value, for errors.
        form: of a correct value; None: any line of text is correct.
        lines: the value may have several lines; then it has no form.
    """

    name: str
    metavar: str
    help: str
    example: str
    form: TextForm | None = None
    lines: bool = False


class KindOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one kind of engine.

    Args:
        engine: options of the engine itself.
        pool: options of each pool that names such an engine.
    """

    engine: tuple[EngineOption, ...]
    pool: tuple[EngineOption, ...]


def is_answer_time(text: str) -> bool:
    """Return whether the text is a duration up to `LONGEST_ANSWER_S`."""
    try:
        return 0 < parse_duration_s(text) <= LONGEST_ANSWER_S
    except (ValueError, OverflowError):
        return False


def is_command(text: str) -> bool:
    """Return whether a shell could split the text into words, of which there is at least one."""
    try:
        return bool(shlex.split(text))
    except ValueError:
        return False


PATH = make_form("an absolute path", r"/[^\x00-\x1f]*")
COMMAND = TextForm("a command", is_command)
CPUS = make_form("a whole number from 1 to 4096", r"[1-9]\d{0,2}|[1-3]\d{3}|40[0-8]\d|409[0-6]")
ANSWER = TextForm(f"a duration up to {LONGEST_ANSWER_S:g}s", is_answer_time)
CHOICE = make_form("yes or no", "yes|no")
SIZE = make_form("a number with M, G or T", r"[1-9]\d{0,6}[MGT]")

ELASTANE = EngineOption(
    name="command",
    metavar="COMMAND",
    help="Command that runs elastane on the nodes. Default: the controller's Python.",
    example="/opt/train/bin/elastane",
    form=COMMAND,
)
OWN_HOME = "own"
HOME = EngineOption(
    name="home",
    metavar="shared|own",
    help="own: the machines do not share $ELASTANE_HOME; the controller keeps the records of the runs, and "
    "checkpoints need a directory or URL of their own. Default: shared.",
    example="own",
    form=make_form("shared or own", "shared|own"),
)
SETUP = EngineOption(
    name="setup",
    metavar="TEXT",
    help="Lines of shell that each agent runs before it starts, such as module load cuda.",
    example="module load cuda",
    lines=True,
)
WORKERS = EngineOption(
    name="workersPerAgent",
    metavar="N",
    help="The most workers of an agent, which run on one node. A job with sizes that are all multiples of a "
    "number up to N has fewer agents. Default: 1.",
    example="8",
    form=CPUS,
)
