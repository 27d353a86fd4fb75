"""The answer of a program with torch to the command line, which runs without torch: one line of JSON."""

import sys
from collections.abc import Callable

import msgspec

from elastane.common.errors import ElastaneError
from elastane.run.nouns.export import ExportRefusal


def print_answer(answer: Callable[[], msgspec.Struct]) -> int:
    """Print the answer, or the reason for a refusal; `elastane.cli.torch_process` reads the line.

    Returns:
        The exit code.
    """
    line: msgspec.Struct
    try:
        line = answer()
    except ElastaneError as error:
        line = ExportRefusal(what=error.what, means=error.means, do=error.do, exit_code=error.exit_code)
    sys.stdout.write(f"{msgspec.json.encode(line).decode()}\n")
    return isinstance(line, ExportRefusal)
