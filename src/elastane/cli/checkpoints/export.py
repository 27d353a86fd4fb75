"""``elastane checkpoint export``: a checkpoint's model in a format that others load."""

from pathlib import Path
from typing import Annotated

import typer

from elastane.api.errors import NoSuchRun
from elastane.api.export import Exported
from elastane.api.spec import MAX_SHARD_BYTES
from elastane.cli.checkpoints.which import Checkpoint, Checkpoints, catalog_of, chosen
from elastane.cli.runs import export as finished
from elastane.cli.runs.export import DType, Format, options_of, show_exported
from elastane.cli.verb import AsJson
from elastane.cli.with_torch import said_by
from elastane.client.resolve import find_run
from elastane.observability.run_files import read_record


def export(
    run: Checkpoints,
    checkpoint: Checkpoint = None,
    *,
    form: Format,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A new directory. Default: CHECKPOINT-FORMAT, here.", show_default=False
        ),
    ] = None,
    dtype: DType = None,
    optimizer: Annotated[
        bool, typer.Option("--optimizer", help="The optimizer's state too.", show_default=False)
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the model of a checkpoint of RUN for other programs.

    The run may be live, over, or killed. Every element is checked as it is read.

      $ elastane checkpoint export demo 1500 --format hf --out demo-1500
    """
    catalog = catalog_of(run)
    name = chosen(catalog, checkpoint)
    folder = (out or Path(f"{name}-{form}")).absolute()
    options = ["--checkpoints", catalog.place.url, "--checkpoint", name]
    options += ["--max-shard-bytes", str(max_shard_bytes(run))]
    options += options_of(form, folder, dtype, optimizer=optimizer)
    show_exported(said_by(finished.MODULE, options, Exported), name, form, as_json=as_json)


def max_shard_bytes(run: str) -> int:
    """As the run was asked to cut its model."""
    try:
        return read_record(find_run(run)).spec.max_shard_bytes
    except NoSuchRun:
        return MAX_SHARD_BYTES
