"""The beginning of a run from the state of another one (``elastane run --from RUN[@STEP]``).

The other run is only read. The new run gets a copy of one checkpoint, as its own first one: from then on it
needs the other run no more, and resumes as any run does.
"""

from collections.abc import Callable
from contextlib import suppress

import msgspec

from elastane.common.errors import BadInput, Damaged, FileDamage, StorageError
from elastane.common.safe_text import escape_line
from elastane.run.checkpoints.catalog import Catalog
from elastane.run.checkpoints.storage.copies import read_pieces
from elastane.run.checkpoints.storage.urls import open_run_storage, open_storage
from elastane.run.nouns.checkpoints import (
    MANIFEST,
    MARKER,
    METADATA,
    PLAIN,
    SAVED_BY,
    Manifest,
    PartFile,
    format_checkpoint_name,
)
from elastane.run.nouns.records import Digest
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import (
    CheckpointPolicy,
    CheckpointRun,
    DataPosition,
    Resumed,
    RunOrigin,
    RunRecord,
    RunSpec,
    find_pinned_at,
)
from elastane.run.observability.digests import add_last_digest
from elastane.run.observability.model_files import is_plain_name
from elastane.run.observability.run_files import read_record, read_run, write_record
from elastane.run.protocol.sampling import find_next_positions, find_position_after

FIRST_TERM = 1
DECIDING = ("seed", "threads", "convergence", "numerics")
"""Settings that decide the bits, beside the number of virtual ranks."""


class OriginState(msgspec.Struct, frozen=True):
    """The state of another run with which a run is to begin.

    Args:
        catalog: the checkpoints of the other run.
        manifest: of the one to begin with.
        virtual_ranks: with which the other run was started; None: global batch divided by microbatch.
    """

    origin: RunOrigin
    catalog: Catalog
    manifest: Manifest
    virtual_ranks: int | None


def split_step(text: str) -> tuple[str, int | None]:
    """Split ``RUN@STEP`` into the run and the step; None: the newest checkpoint."""
    run, _, step = text.rpartition("@")
    return (run, int(step)) if run and step.isascii() and step.isdigit() else (text, None)


def open_checkpoints(run_dir: RunDir, policy: CheckpointPolicy | None) -> Catalog:
    """Return the checkpoints of a run, also of one that saves none but began with one."""
    return Catalog(open_run_storage(run_dir, policy or CheckpointPolicy()))


def read_origin(run_dir: RunDir, step: int | None) -> OriginState:
    """Return the state of a run after a step; nothing of the run is changed, and nothing of it is run.

    Args:
        step: of an existing checkpoint; None: the newest intact one.

    Raises:
        BadInput: the run has no such checkpoint, or its files contradict each other.
        StorageError: the storage of its checkpoints does not answer.
    """
    record = read_record(run_dir)
    catalog, name = open_checkpoints(run_dir, record.spec.checkpoints), escape_line(record.spec.name)
    manifest = _select_checkpoint(catalog, name, step)
    if record.pinned is None:
        raise BadInput(
            f"{run_dir.run} does not say how the run {name} divides its data",
            means="no worker of that run has loaded its script, so none can have saved this checkpoint",
            do="name the directory of the run that saved it",
        )
    run = CheckpointRun(
        name=name,
        pinned=find_pinned_at(record.pinned, record.divisions, manifest.step),
        virtual_ranks=record.spec.virtual_ranks,
        began_at=record.began_at,
    )
    recorded = add_last_digest(read_run(run_dir))
    digest = next((line.digest for line in recorded.ledger if line.step == manifest.step), None)
    return _build_state(run, str(run_dir.root), catalog, manifest, digest)


def read_stored_origin(url: str, step: int | None) -> OriginState:
    """Return the state of a run of which this machine only reaches the checkpoints; see `read_origin`."""
    catalog = Catalog(open_storage(url))
    manifest = _select_checkpoint(catalog, url, step)
    if SAVED_BY not in manifest.plain:
        raise BadInput(
            f"{manifest.name} in {catalog.storage.url} does not say how its run divides the data",
            means="a version of Elastane without this has saved it",
            do="name the run itself, or its directory",
        )
    try:
        run = msgspec.convert(manifest.plain[SAVED_BY], CheckpointRun, str_keys=True)
        settings = {name: getattr(run.pinned, name) for name in DECIDING}
        msgspec.convert({"name": run.name, "script": ""} | settings, RunSpec)
    except (msgspec.ValidationError, RecursionError) as error:
        damage = FileDamage(MANIFEST, f"its run cannot be read: {escape_line(str(error))}")
        raise Damaged(manifest.name, (damage,)) from error
    run = msgspec.structs.replace(run, name=escape_line(run.name))
    return _build_state(run, catalog.storage.url, catalog, manifest, None)


def _build_state(
    run: CheckpointRun, directory: str, catalog: Catalog, manifest: Manifest, digest: Digest | None
) -> OriginState:
    origin = RunOrigin(
        run=run.name,
        directory=directory,
        checkpoint=manifest.name,
        position=_find_position(run, manifest),
        pinned=run.pinned,
        parameters_sha256="" if digest is None else digest.parameters,
        optimizer_sha256="" if digest is None else digest.optimizer,
    )
    return OriginState(origin, catalog, manifest, run.virtual_ranks)


def _select_checkpoint(catalog: Catalog, name: str, step: int | None) -> Manifest:
    summaries = catalog.list_summaries()
    complete = [summary for summary in summaries if summary.state == "complete"]
    if not complete:
        raise BadInput(
            f"{catalog.storage.url} has no complete checkpoint",
            means="a run begins from the state in a checkpoint of another one",
            do="save one: elastane checkpoint now RUN, if it is alive; or start the run without --from",
        )
    steps = sorted({summary.step for summary in complete})
    if step is not None and step not in steps:
        raise BadInput(
            f"{name} has no complete checkpoint after step {step}",
            means=f"there is one after step {', '.join(map(str, steps))}",
            do=f"--from {name}@{min(steps, key=lambda known: abs(known - step))}",
        )
    newest = [summary for summary in summaries if summary.state != "unfinished"][-1]
    if step is None and newest.state != "complete":
        raise Damaged(
            newest.name, newest.damages, means=f"complete are those after step {', '.join(map(str, steps))}"
        )
    # After a resume the newest checkpoint of a step is the one that the run went on from.
    chosen = [summary for summary in complete if step in (None, summary.step)][-1]
    manifest = catalog.load_manifest(chosen.name)
    if (manifest.name, manifest.step) != (chosen.name, chosen.step):
        why = f"describes {manifest.name}, step {manifest.step}"
        raise Damaged(chosen.name, (FileDamage(MANIFEST, escape_line(why)),))
    return manifest


def _find_position(run: CheckpointRun, manifest: Manifest) -> DataPosition:
    """Return where the data of a run stands after the step of a checkpoint."""
    pinned = run.pinned
    try:
        if pinned.dataset_length:
            length = pinned.dataset_length - pinned.dropped
            return find_position_after(manifest.step, length, pinned.global_batch, run.began_at)
        cursors = {int(rank): str(text) for rank, text in manifest.plain["cursors"].items()}
        places = find_next_positions(cursors, pinned.virtual_ranks)
    except (AttributeError, KeyError, ValueError, ZeroDivisionError, msgspec.MsgspecError) as error:
        damage = FileDamage(MANIFEST, f"the position in the data cannot be read: {escape_line(str(error))}")
        raise Damaged(manifest.name, (damage,)) from error
    return DataPosition(
        step=manifest.step,
        epoch=places[0].epoch,
        start=sum(place.position for place in places),
        shards={shard: place.position for shard, place in enumerate(places) if place.position},
    )


# -- the beginning in a new run directory ------------------------------------------------------------------


def prepare_beginning(
    run_dir: RunDir, state: OriginState, say: Callable[[str], None], *, again: bool = False
) -> RunRecord:
    """Copy the state of another run into a new run directory; the caller holds its lock.

    Args:
        again: an earlier attempt of the same run may have copied a part, and another one may follow.

    Raises:
        BadInput: the place of the new run's checkpoints has others.
        Damaged: the checkpoint is damaged, or was deleted while it was copied.
        StorageError: a storage does not answer.
    """
    record, origin = read_record(run_dir), state.origin
    into = open_checkpoints(run_dir, record.spec.checkpoints)
    # A checkpoint that is copied onto itself is lost.
    is_elsewhere = into.storage.url != state.catalog.storage.url
    if into.list_names() and not (again and is_elsewhere and _holds_copy(into, state.manifest)):
        if not again:
            run_dir.run.unlink(missing_ok=True)
        raise BadInput(
            f"{into.storage.url} already has checkpoints",
            means="the new run could not tell them from its own",
            do="choose another --checkpoint-dir for the new run",
        )
    try:
        manifest = copy_checkpoint(state.catalog, state.manifest, into)
    except BaseException:
        # Without these the directory is free for the same command.
        with suppress(StorageError):
            into.delete(format_checkpoint_name(state.manifest.step))
        if not again:
            run_dir.run.unlink(missing_ok=True)
        raise
    beginning = Resumed(manifest.name, manifest.step, 0, 0, FIRST_TERM, adapted=True)
    record = msgspec.structs.replace(record, origin=origin, resumed=beginning)
    write_record(run_dir, record)
    say(f"from {origin}: {manifest.bytes / 1e6:.1f} MB of {origin.checkpoint} copied and verified")
    return record


def begin_from_checkpoints(run_dir: RunDir, record: RunRecord, say: Callable[[str], None]) -> RunRecord:
    """Prepare the first attempt of a job that begins from the checkpoints of another run.

    It takes the settings that decide the bits from that run, unless its own differ from the defaults.

    Raises:
        ElastaneError: as `read_stored_origin` and `prepare_beginning`.
    """
    state = read_stored_origin(*split_step(record.spec.begins_from))
    usual = RunSpec(name="", script="")
    found = {name: getattr(state.origin.pinned, name) for name in DECIDING}
    found["virtual_ranks"] = state.virtual_ranks
    given = {
        name: value for name, value in found.items() if getattr(record.spec, name) == getattr(usual, name)
    }
    spec = msgspec.structs.replace(record.spec, **given)
    write_record(run_dir, msgspec.structs.replace(record, spec=spec))
    return prepare_beginning(run_dir, state, say, again=True)


def _holds_copy(into: Catalog, manifest: Manifest) -> bool:
    """Return whether a storage has no complete checkpoint but the copy of one."""
    copy, parts = format_checkpoint_name(manifest.step), _list_copied(manifest)
    published = {name: into.find_published(name) for name in into.list_names()}
    return all(found is None or (name == copy and found.parts == parts) for name, found in published.items())


def _list_copied(manifest: Manifest) -> tuple[PartFile, ...]:
    """Return the files of a checkpoint without those that only foreign readers use."""
    return tuple(part for part in manifest.parts if part.name not in (METADATA, PLAIN))


def copy_checkpoint(source: Catalog, manifest: Manifest, into: Catalog) -> Manifest:
    """Copy a checkpoint, as the first one of a run, and verify every byte of it.

    Files that only foreign readers use are left out: they are pickled, and another machine may have written
    them.

    Raises:
        Damaged: a file has changed since the write, or is missing.
        StorageError: a storage does not answer.
    """
    name = format_checkpoint_name(manifest.step)
    parts = _list_copied(manifest)
    for part in parts:
        if not is_plain_name(part.name) or part.name in (MANIFEST, MARKER):
            raise Damaged(manifest.name, (FileDamage(MANIFEST, f"names the file {part.name!r}"),))
        with source.storage.open_file(f"{manifest.name}/{part.name}") as file:
            if file.bytes != part.bytes:
                why = f"has {file.bytes} bytes instead of {part.bytes}"
                raise Damaged(manifest.name, (FileDamage(part.name, why),))
            written = into.write(name, part.name, read_pieces(file))
        if written.checksum != part.checksum:
            why = f"its checksum is {written.checksum} instead of {part.checksum}"
            raise Damaged(manifest.name, (FileDamage(part.name, why),))
    # The new run goes on where the script of the other one may have ended.
    plain = {key: value for key, value in manifest.plain.items() if key != "ending"}
    copied = msgspec.structs.replace(manifest, name=name, resumed=0, parts=parts, plain=plain)
    into.publish(copied)
    return copied
