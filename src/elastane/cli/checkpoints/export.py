"""``elastane checkpoint export``: write the model of a checkpoint in a format that other programs load."""

from pathlib import Path
from typing import Annotated

import typer

from elastane.cli.checkpoints.selection import Checkpoint, Checkpoints, open_catalog, select_checkpoint
from elastane.cli.command import AsJson
from elastane.cli.runs.export import DType, Format, build_export_options, print_export, run_exporter
from elastane.common.errors import NoSuchRun
from elastane.run.machines.visits.run_finder import find_run
from elastane.run.nouns.spec import MAX_SHARD_BYTES
from elastane.run.observability.run_files import read_record


def export_checkpoint(
    run: Checkpoints,
    checkpoint: Checkpoint = None,
    *,
    form: Format,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A new or empty directory. Default: CHECKPOINT-FORMAT in the working directory.",
        ),
    ] = None,
    dtype: DType = None,
    optimizer: Annotated[bool, typer.Option("--optimizer", help="Also write the optimizer state.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the model of a checkpoint of RUN in a format for other programs.

    The run may be live, finished or killed. Each element is verified as it is
    read.

      $ elastane checkpoint export demo 1500 --format hf --out demo-1500
    """
    catalog = open_catalog(run)
    name = select_checkpoint(catalog, checkpoint)
    folder = (out or Path(f"{name}-{form}")).absolute()
    options = ["--checkpoints", catalog.storage.url, "--checkpoint", name]
    options += ["--max-shard-bytes", str(read_max_shard_bytes(run))]
    options += build_export_options(form, folder, dtype, optimizer=optimizer)
    print_export(run_exporter(options), name, form, as_json=as_json)


def read_max_shard_bytes(run: str) -> int:
    """Return the largest shard size of a run, in bytes; the default where no run has this name."""
    try:
        return read_record(find_run(run)).spec.max_shard_bytes
    except NoSuchRun:
        return MAX_SHARD_BYTES
