"""``elastane verify --restore``: rehearse a restore, and compare the restored bits with the ledger."""

import time
from typing import Literal, TypeAlias

import msgspec
import typer

from elastane.cli.checkpoints.selection import find_damages, select_checkpoint
from elastane.cli.command import open_console, print_json
from elastane.cli.torch_process import run_module
from elastane.common.errors import BadInput, ElastaneError, FileDamage
from elastane.run.checkpoints.catalog import Catalog
from elastane.run.checkpoints.storage.urls import open_run_storage
from elastane.run.nouns.records import Digest, LedgerLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunRecord, find_pinned_at
from elastane.run.nouns.torch_answers import RestoreRehearsal
from elastane.run.observability.quantities import format_transfer_speed
from elastane.run.observability.run_files import read_ledger, read_record

MODULE = "elastane.run.worker.restore_rehearsal"
DigestResult: TypeAlias = Literal["equal", "different", "unknown", "divided"]


class RestoreResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the rehearsal of a restore.

    Args:
        ok: every byte is as written, and no digest differs from the ledger.
        bytes: size of its files.
        verify_s: seconds to read every file and compare it with its checksum.
        damages: of the files; if there is any, nothing is restored.
        workers, restored_bytes: number of workers that restored, and the bytes that all of them read.
        restore_s: seconds until the last worker had restored.
        digest: compared with the one in the ledger; ``unknown``: the ledger has none of that step;
            ``divided``: it has one of the parts of several processes.
    """

    ok: bool
    name: str
    step: int
    bytes: int
    verify_s: float
    damages: tuple[FileDamage, ...] = ()
    workers: int = 0
    restored_bytes: int = 0
    restore_s: float = 0.0
    digest: DigestResult = "unknown"


def run_rehearsal(run_dir: RunDir, wanted: str | None, workers: int | None, *, as_json: bool) -> None:
    """Read a checkpoint as `elastane run --resume` does: verify it, then restore it on several workers.

    ``wanted`` is a name or a step; None: the newest finished checkpoint. Without ``workers``, the number that
    the run starts with restores.
    """
    record = read_record(run_dir)
    if record.spec.checkpoints is None:
        raise BadInput(f"{record.spec.name} has no checkpoints: it was started with --checkpoint-every never")
    catalog = Catalog(open_run_storage(run_dir, record.spec.checkpoints))
    ledger = read_ledger(run_dir, torn_tail=True)
    name = select_checkpoint(catalog, wanted)
    try:
        found = restore_checkpoint(catalog, name, record, ledger, workers or record.spec.start)
    except ElastaneError as error:
        check_still_there(catalog, name)
        raise error from None
    if found.damages:
        check_still_there(catalog, name)
    print_result(found, as_json=as_json)
    if as_json:
        print_json(found)
    if not found.ok:
        raise typer.Exit(1)


def check_still_there(catalog: Catalog, name: str) -> None:
    """Check that a live run has not deleted a checkpoint while it was read."""
    if name not in catalog.list_names():
        raise BadInput(
            f"{name} was deleted while it was read",
            means="the run is live and deletes its old checkpoints",
            do="rehearse again; with --keep-last N a run keeps more of them",
        )


def restore_checkpoint(
    catalog: Catalog, name: str, record: RunRecord, ledger: tuple[LedgerLine, ...], workers: int
) -> RestoreResult:
    """Verify a checkpoint, restore it on several workers in another process, and compare the digests.

    The record says how many workers keep each piece of the optimizer state, and the ledger has the digests to
    compare with.
    """
    begun = time.perf_counter()
    damages = find_damages(catalog, name)
    summary = catalog.inspect(name).summary
    found = RestoreResult(
        ok=not damages,
        name=name,
        step=summary.step,
        bytes=summary.bytes,
        verify_s=time.perf_counter() - begun,
        damages=damages,
    )
    if damages:
        return found
    options = ["--checkpoints", catalog.storage.url, "--checkpoint", name, "--workers", str(workers)]
    options += ["--copies", str(record.spec.copies)] if record.spec.copies is not None else []
    restored = run_module(MODULE, options, RestoreRehearsal)
    digest = compare_digests(restored.digest, find_digest(ledger, summary.step))
    pinned = record.pinned
    if pinned is not None and find_pinned_at(pinned, record.divisions, summary.step).division:
        digest = "divided"
    return msgspec.structs.replace(
        found,
        ok=digest != "different",
        workers=workers,
        restored_bytes=restored.bytes,
        restore_s=restored.seconds,
        digest=digest,
    )


def find_digest(ledger: tuple[LedgerLine, ...], step: int) -> Digest | None:
    return next((line.digest for line in ledger if line.step == step), None)


def compare_digests(mine: Digest, theirs: Digest | None) -> DigestResult:
    if theirs is None:
        return "unknown"
    return "equal" if mine == theirs else "different"


WORDS = {
    "equal": "the digests of parameters and optimizer equal those of step {step} in the ledger",
    "different": "DIFFERENT: the digests differ from those of step {step} in the ledger",
    "divided": "digests were not compared: that of step {step} describes the parts of a worker's processes",
    "unknown": "the ledger has no digest of step {step} to compare with; see --digest-every",
}


def print_result(found: RestoreResult, *, as_json: bool) -> None:
    console = open_console(as_json=as_json)
    for damage in found.damages:
        console.print(f"{found.name}/{damage}", markup=False)
    if found.damages:
        console.print(
            f"{found.name} is damaged and cannot be restored; a resumed run would use an older checkpoint"
        )
        return
    console.print(
        f"{found.name} verified: {format_transfer_speed(found.bytes, found.verify_s)}", markup=False
    )
    each = "1 worker" if found.workers == 1 else f"{found.workers} workers"
    speed = format_transfer_speed(found.restored_bytes, found.restore_s)
    console.print(f"restored on {each}: {speed}", markup=False)
    console.print(WORDS[found.digest].format(step=found.step), markup=False)
    console.print(
        "the checkpoint restores the state" if found.ok else "the checkpoint does NOT restore the state",
        markup=False,
    )
