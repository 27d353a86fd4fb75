"""``elastane doctor``: find out whether an engine can work."""

from typing import Annotated

import typer

from elastane.cli.command import AsJson, open_console, print_json
from elastane.cluster.client.context import connect
from elastane.common.exit_codes import ExitCode

EngineName = Annotated[str, typer.Argument(metavar="ENGINE", help="Name of the engine.")]


def doctor(engine: EngineName, as_json: AsJson = False) -> None:
    """Find out whether ENGINE has all that it needs, before the first job does.

    The controller looks on its own machine, and starts nothing. The exit code is
    1 if something is missing.
    """
    with connect() as cluster:
        found = cluster.examine_engine(engine)
    if as_json:
        print_json(found)
    else:
        console = open_console(as_json=False)
        for finding in found:
            console.print(f"{'ok' if finding.ok else 'wrong':<7}{finding.what}", markup=False, soft_wrap=True)
            if finding.do:
                console.print(f"{'':<7}do: {finding.do}", markup=False, soft_wrap=True)
    if not all(finding.ok for finding in found):
        raise typer.Exit(ExitCode.FAILED)
