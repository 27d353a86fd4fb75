"""``elastane checkpoint``: the command group, and all its commands except ``now``."""

from typing import Annotated, Literal

import msgspec
import typer

from elastane.cli.checkpoints.now import write_checkpoint_now
from elastane.cli.checkpoints.selection import (
    Checkpoint,
    Checkpoints,
    find_damages,
    find_origin,
    open_catalog,
    select_checkpoint,
)
from elastane.cli.command import AsJson, make_group, open_console, print_json
from elastane.cli.options import flag, option
from elastane.cli.runs.results import (
    DType,
    Format,
    build_export_options,
    choose_export_folder,
    print_export,
    run_exporter,
)
from elastane.cli.timestamps import localize_timestamps
from elastane.common.errors import BadInput, NoSuchFile, NoSuchRun
from elastane.run.machines.visits.run_finder import find_run
from elastane.run.nouns.checkpoints import CheckpointSummary, Manifest, Retention
from elastane.run.nouns.spec import MAX_SHARD_BYTES
from elastane.run.observability.quantities import format_size
from elastane.run.observability.run_files import read_record

HELP = """
Request, inspect, verify, export and delete the checkpoints of a run.

RUN is the name of a run, its directory, or the directory or URL of its
checkpoints, on any file system that fsspec supports: s3://bucket/path.
CHECKPOINT is a name or a step. Default: the newest finished checkpoint.

  $ elastane checkpoint now demo --wait          [dim]write one now[/dim]
  $ elastane checkpoint list demo
  $ elastane checkpoint export demo 1500 --format torch
  $ elastane verify --restore demo               [dim]rehearse a restore[/dim]
  $ elastane run --resume demo                   [dim]resume the run[/dim]
"""

SHOWN = 20
"""The most tensors that ``show`` lists; --json lists all."""


def list_checkpoints(run: Checkpoints, as_json: AsJson = False) -> None:
    """List the checkpoints of RUN, oldest first.

    With --json, a list of objects with the keys name, state, step, resumed,
    bytes, created, metrics and damages.
    """
    catalog = open_catalog(run)
    found = catalog.list_summaries()
    if as_json:
        print_json(found)
        return
    if not found:
        open_console().print(f"no checkpoints in {catalog.storage.url}", markup=False)
        return
    from elastane.cli.tables import build_table, print_wide

    cells = [
        (
            summary.name,
            str(summary.step),
            format_size(summary.bytes) if summary.bytes else "",
            summary.state,
            localize_timestamps(summary.created),
            format_metrics(summary),
        )
        for summary in found
    ]
    titles = ("name", "step", "size", "state", "written", "metrics")
    print_wide(open_console(), build_table(titles, cells, numbers=("step", "size")))
    for summary in found:
        for damage in summary.damages:
            open_console().print(f"{summary.name}: {damage}", markup=False)


def show_checkpoint(run: Checkpoints, checkpoint: Checkpoint = None, as_json: AsJson = False) -> None:
    """Show the contents of a checkpoint of RUN: files, tensors and counters.

    With --json, the manifest.
    """
    catalog = open_catalog(run)
    name = select_checkpoint(catalog, checkpoint)
    try:
        manifest = catalog.load_manifest(name)
    except NoSuchFile as error:
        raise BadInput(
            f"checkpoint {name} is unfinished",
            means="it has no manifest, so its contents are unknown",
            do="choose another one: elastane checkpoint list RUN",
        ) from error
    if as_json:
        print_json(manifest)
        return
    print_manifest(manifest, catalog.storage.url)


def verify_checkpoint(run: Checkpoints, checkpoint: Checkpoint = None, as_json: AsJson = False) -> None:
    """Read every byte of a checkpoint of RUN and compare it with its checksums.

    The exit code is 0 if the checkpoint is valid, 1 if it is damaged.

    With --json, an object with the keys name, ok, bytes and damages.
    """
    catalog = open_catalog(run)
    name = select_checkpoint(catalog, checkpoint)
    damages = find_damages(catalog, name)
    size_bytes = catalog.inspect(name).summary.bytes
    if as_json:
        print_json({"name": name, "ok": not damages, "bytes": size_bytes, "damages": damages})
    else:
        console = open_console()
        for damage in damages:
            console.print(f"{name}/{damage}", markup=False)
        verdict = "damaged" if damages else f"valid: {format_size(size_bytes)} verified"
        console.print(f"{name} is {verdict}")
    if damages:
        raise typer.Exit(1)


def prune_checkpoints(
    run: Checkpoints,
    *,
    last: Annotated[int | None, option("N", "Keep the newest N checkpoints.", "--last", min=1)] = None,
    every: Annotated[
        int | None, option("K", "Keep the checkpoints of every K-th step.", "--every", min=1)
    ] = None,
    best: Annotated[
        str | None,
        option("METRIC:min|max", "Keep the best checkpoint by a metric, such as eval_loss:min.", "--best"),
    ] = None,
    dry_run: Annotated[bool, flag("List what would be deleted; delete nothing.", "--dry-run", "-n")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the checkpoints of RUN that no rule keeps.

    Without rules, only damaged and unfinished checkpoints are deleted.

    Three kinds always stay: the newest valid checkpoint; newer ones, which the
    run may still be writing; and the one that a live run was resumed from,
    because joining workers read it. The newest valid checkpoint is read and
    verified before anything is deleted.

    With --json, an object with the keys deleted (each name and why) and dry_run.
    """
    catalog = open_catalog(run)
    rules = Retention(last=last, every=every, best=parse_best_rule(best), origin=find_origin(run))
    gone = catalog.plan_pruning(rules) if dry_run else catalog.prune(rules)
    if as_json:
        print_json({"deleted": gone, "dry_run": dry_run})
        return
    console = open_console()
    for deletion in gone:
        console.print(
            f"{'would delete' if dry_run else 'deleted'} {deletion.name}: {deletion.why}", markup=False
        )
    if not gone:
        console.print("nothing to delete")


def parse_best_rule(text: str | None) -> tuple[str, Literal["min", "max"]] | None:
    """Return the metric and direction of a text such as ``eval_loss:min``; None without a text."""
    if text is None:
        return None
    metric, _, direction = text.rpartition(":")
    if metric and direction == "min":
        return metric, "min"
    if metric and direction == "max":
        return metric, "max"
    raise BadInput(
        f"invalid --best: {text!r} is not METRIC:min or METRIC:max",
        do="write for example --best eval_loss:min",
    )


def print_manifest(manifest: Manifest, url: str) -> None:
    """Print a manifest: its header, counters and metrics, then tables of files and of the first tensors."""
    from elastane.cli.tables import build_table, print_wide

    console = open_console()
    tensors = manifest.tensors
    console.print(
        f"{url}/{manifest.name}: step {manifest.step}, written {localize_timestamps(manifest.created)}, "
        f"{len(tensors)} tensors, {format_size(manifest.bytes)}, {manifest.seconds:.1f} s to copy and write",
        markup=False,
    )
    values = {
        name: value for name, value in (manifest.plain | manifest.metrics).items() if value or value == 0
    }
    for name, value in values.items():
        console.print(f"  {name}: {msgspec.json.encode(value).decode()}", markup=False, overflow="ellipsis")
    files = [
        (part.name, format_size(part.bytes), str(len(part.items)) if part.items else "", part.checksum)
        for part in manifest.parts
    ]
    print_wide(console, build_table(("file", "size", "items", "xxh128"), files, numbers=("size", "items")))
    shapes = [
        (key, facts.dtype, " x ".join(map(str, facts.shape)) or "scalar")
        for key, facts in list(tensors.items())[:SHOWN]
    ]
    print_wide(console, build_table(("tensor", "dtype", "shape"), shapes))
    if len(tensors) > SHOWN:
        console.print(f"and {len(tensors) - SHOWN} more; --json lists all")


def format_metrics(summary: CheckpointSummary) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in summary.metrics.items())


def export_checkpoint(
    run: Checkpoints,
    checkpoint: Checkpoint = None,
    *,
    form: Format,
    out: Annotated[
        str | None,
        option(
            "DIR",
            "A new or empty directory, or a URL such as s3://bucket/model. Default: CHECKPOINT-FORMAT in the "
            "working directory.",
        ),
    ] = None,
    dtype: DType = None,
    optimizer: Annotated[bool, flag("Also write the optimizer state.", "--optimizer")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the model of a checkpoint of RUN in a format for other programs.

    The run may be live, finished or killed. Each element is verified as it is
    read.

      $ elastane checkpoint export demo 1500 --format hf --out demo-1500
    """
    catalog = open_catalog(run)
    name = select_checkpoint(catalog, checkpoint)
    folder = choose_export_folder(out, f"{name}-{form}")
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


checkpoint = make_group(
    "checkpoint",
    HELP,
    {
        "now": write_checkpoint_now,
        "list": list_checkpoints,
        "show": show_checkpoint,
        "verify": verify_checkpoint,
        "export": export_checkpoint,
        "prune": prune_checkpoints,
    },
)
