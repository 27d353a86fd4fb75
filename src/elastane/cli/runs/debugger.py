"""``elastane run --debug``: one worker has the terminal, so that ``breakpoint()`` works."""

import asyncio
import re
from typing import TYPE_CHECKING

from elastane.common.errors import BadInput
from elastane.run.nouns.spec import RunRecord

if TYPE_CHECKING:
    from rich.console import Console

ONE = re.compile(r"\s*0*1(\s*:\s*0*1)?\s*")
NOTE = (
    "one worker owns this terminal, so breakpoint() works. The first microbatch is computed twice before "
    "step 1, so a breakpoint in the inner loop stops there first"
)


def check_debug_options(*, workers: str | None, start: int | None, as_json: bool) -> None:
    """Refuse the options that contradict ``--debug``, all in one error."""
    wrong = [f"--workers {workers}"] if workers is not None and not ONE.fullmatch(workers) else []
    wrong += [f"--start {start}"] if start not in (None, 1) else []
    if wrong:
        raise BadInput(
            f"--debug cannot be combined with {' and '.join(wrong)}",
            means="--debug runs one worker, because one terminal serves one debugger",
            do="omit the number of workers or --debug; the trained bytes are the same",
        )
    if as_json:
        raise BadInput(
            "--debug cannot be combined with --json",
            means="the script and its debugger write to standard output, where the JSON would be",
            do="omit --json; elastane ps RUN --json shows the run in another terminal",
        )


class DebugTerminal:
    """View of a run that leaves the terminal to the worker: it prints messages and draws no panel."""

    def __init__(self, console: "Console") -> None:
        self._console = console

    def say(self, line: str) -> None:
        self._console.print(line, markup=False)

    def view(self, record: RunRecord) -> "DebugTerminal":
        return self

    async def follow(self) -> None:
        await asyncio.Event().wait()

    def close(self, *, update: bool) -> None:
        """Do nothing, because nothing is open."""
