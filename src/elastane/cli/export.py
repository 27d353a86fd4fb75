"""``elastane export``: the finished model in a format that others load."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from elastane.api.errors import BadInput, RunFailed
from elastane.api.export import Exported, ExportFormat, ExportType, Refused
from elastane.cli.verb import AsJson, RunName, print_json, talk
from elastane.client.resolve import find_run
from elastane.observability.card import size_text
from elastane.observability.run_files import is_live, read_record

MODULE = "elastane.runtime.export"


def export(
    run: RunName,
    *,
    form: Annotated[
        ExportFormat,
        typer.Option(
            "--format",
            help="hf: for transformers' from_pretrained. torch: state dicts. dcp: a distributed checkpoint.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A new directory. Default: RUN-FORMAT, here.", show_default=False),
    ] = None,
    dtype: Annotated[
        ExportType | None,
        typer.Option(help="Convert floating-point weights. Default: as trained.", show_default=False),
    ] = None,
    optimizer: Annotated[
        bool, typer.Option("--optimizer", help="Its state too; the run must have used --save-optimizer.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the finished model of RUN for other programs.

    $ elastane export demo --format hf --dtype bf16 --out demo-hf
    """
    run_dir = find_run(run)
    name = read_record(run_dir).spec.name
    folder = (out or Path(f"{name}-{form}")).absolute()
    if is_live(run_dir):
        raise BadInput(
            f"{name} is still running",
            means="its model is written when it is over",
            do=f"wait for it, or end it at the next commit: elastane stop {name} --wait",
        )
    options = ["--run-dir", str(run_dir.root), "--format", form, "--out", str(folder)]
    options += ["--dtype", dtype] if dtype else []
    options += ["--optimizer"] if optimizer else []
    done = exported(options)
    console = talk(as_json=as_json)
    for file, size_bytes in done.files.items():
        console.print(f"  {size_text(size_bytes):>9}  {file}", markup=False)
    console.print(f"{name} as {form} in {done.out}", markup=False)
    if as_json:
        print_json({"out": done.out, "format": form, "files": done.files})


def exported(options: list[str]) -> Exported:
    """Let the process that has torch do it.

    Raises:
        BadInput: it cannot be done.
        RunFailed: the process broke; what it printed is on stderr.
    """
    # -P keeps the working directory out of its module path: a user's logging.py is not ours.
    command = [sys.executable, "-P", "-m", MODULE, *options]
    process = subprocess.run(command, stdout=subprocess.PIPE, check=False)  # noqa: S603 - our own module
    lines = process.stdout.splitlines()
    try:
        said = msgspec.json.decode(lines[-1] if lines else b"", type=Exported | Refused)
    except msgspec.DecodeError:
        raise RunFailed(
            f"the exporting process ended with exit code {process.returncode} and without a word",
            means="nothing was exported; what it printed is above",
            do="check that torch and safetensors are installed: pip install 'elastane[torch]'",
        ) from None
    if isinstance(said, Refused):
        raise BadInput(said.what, means=said.means, do=said.do)
    return said
