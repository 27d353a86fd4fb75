"""Find the checkpoint that a user means: by the name of its run, or by a path or URL."""

from typing import Annotated, TypeAlias

from elastane.cli.completion import complete_runs
from elastane.cli.options import argument
from elastane.cli.run_lookup import find_trained_run
from elastane.common.errors import BadInput, FileDamage, NoSuchFile, NoSuchRun
from elastane.run.checkpoints.catalog import Catalog
from elastane.run.checkpoints.storage.urls import open_run_storage, open_storage
from elastane.run.connections.run_lock import is_live
from elastane.run.machines.visits.run_finder import find_run
from elastane.run.observability.run_files import read_record

Checkpoints: TypeAlias = Annotated[
    str,
    argument(
        "RUN", "A run's name or directory, or the path or URL of checkpoints.", autocompletion=complete_runs
    ),
]
Checkpoint: TypeAlias = Annotated[
    str | None, argument("CHECKPOINT", "A checkpoint's name or step. Default: the newest finished one.")
]


def open_catalog(run: str) -> Catalog:
    """Return the catalog of a run's name or directory, or of the path or URL of a directory of checkpoints.

    Raises:
        NoSuchRun: no run has that name, and no checkpoints are at that path.
        BadInput: the URL names a file system that is not installed.
    """
    if "://" in run:
        return Catalog(open_storage(run))
    try:
        run_dir = find_trained_run(run, "checkpoints")
        policy = read_record(run_dir).spec.checkpoints
        if policy is None:
            return Catalog(open_storage(str(run_dir.checkpoints), run_dir.root))
        return Catalog(open_run_storage(run_dir, policy))
    except NoSuchRun:
        catalog = Catalog(open_storage(run))
        if catalog.list_names():
            return catalog
        raise


def find_origin(run: str) -> str:
    """Return the name of the checkpoint that a live run was resumed from; empty if there is none."""
    try:
        run_dir = find_run(run)
    except NoSuchRun:
        return ""
    resumed = read_record(run_dir).resumed
    return resumed.checkpoint if resumed is not None and is_live(run_dir) else ""


def find_damages(catalog: Catalog, name: str) -> tuple[FileDamage, ...]:
    """Return the damages of a checkpoint; one that is unfinished has one."""
    try:
        return catalog.verify(name)
    except NoSuchFile:
        return (FileDamage("COMPLETE", "is missing: the checkpoint was never finished"),)


def select_checkpoint(catalog: Catalog, wanted: str | None) -> str:
    """Return the name of the checkpoint with a name or a step; None: of the newest finished one."""
    found = catalog.list_summaries()
    if wanted is None:
        finished = [summary.name for summary in found if summary.state != "unfinished"]
        if not finished:
            raise BadInput(f"{catalog.storage.url} holds no finished checkpoint")
        return finished[-1]
    for summary in reversed(found):
        if wanted == summary.name or (wanted.isdigit() and int(wanted) == summary.step):
            return summary.name
    raise BadInput(
        f"{catalog.storage.url} holds no checkpoint {wanted}",
        do=f"choose one of {', '.join(summary.name for summary in found)}" if found else "",
    )
