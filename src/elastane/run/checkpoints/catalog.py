"""The catalog of a run's checkpoints: it publishes, inspects, verifies, restores and deletes them."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from elastane.common.errors import BadInput, Damaged, FileDamage, NoSuchFile, StorageError, UnreadableData
from elastane.common.untrusted_data import Decoder, Malformed
from elastane.run.checkpoints.rectangles import Box, find_tiling_problem
from elastane.run.checkpoints.retention import choose_deletions
from elastane.run.checkpoints.storage.hashing import hash_file
from elastane.run.checkpoints.storage.interface import Bytes, Storage
from elastane.run.nouns.checkpoints import (
    MANIFEST,
    MARKER,
    SCHEMA,
    CheckpointMarker,
    CheckpointSummary,
    Deletion,
    Manifest,
    PartFile,
    PartItem,
    Retention,
    TensorFacts,
    WrittenFile,
    parse_checkpoint_age,
)

T = TypeVar("T")

PARALLEL_FILES = 2
"""The number of files to verify in parallel, each with its own readers."""
"""The number of problems to name per tensor; the rest is counted."""


class Schema(msgspec.Struct, frozen=True):
    """The part of a manifest that is the same in every schema."""

    schema: int


LARGEST_MANIFEST_BYTES = 1 << 30
"""The limit of a manifest, which names every rectangle of every tensor."""

_decode_marker = Decoder[CheckpointMarker](CheckpointMarker, at_most_bytes=1 << 16)
_decode_schema = Decoder[Schema](Schema, at_most_bytes=LARGEST_MANIFEST_BYTES)
_decode_manifest = Decoder[Manifest](Manifest, at_most_bytes=LARGEST_MANIFEST_BYTES)


class Inspection(msgspec.Struct, frozen=True):
    """The result of `Catalog.inspect`; it has a ``manifest`` only if the checkpoint is complete."""

    summary: CheckpointSummary
    manifest: Manifest | None = None


class Catalog:
    """All checkpoints of a run. Every method raises `StorageError` if the storage does not answer."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    # -- writing -------------------------------------------------------------------------------------------

    def write(self, checkpoint: str, file: str, buffers: Iterable[Bytes]) -> WrittenFile:
        """Write one file of a checkpoint; it is durable when this returns.

        Raises:
            StorageError: the write failed, so the checkpoint stays unfinished.
        """
        return self.storage.write(f"{checkpoint}/{file}", buffers)

    def read(self, checkpoint: str, file: str) -> bytes:
        """Return the content of a small file of a checkpoint."""
        return self.storage.read(f"{checkpoint}/{file}")

    def publish(self, manifest: Manifest) -> CheckpointMarker:
        """Publish a checkpoint after all its files are written: write the manifest, then the marker.

        This replaces an earlier attempt of the same name, and deletes its marker first.

        Raises:
            BadInput: elements are missing, so nothing was written.
            StorageError: a file is missing, has another size, or cannot be written.
        """
        gaps = find_gaps(manifest)
        if gaps:
            raise BadInput(
                f"checkpoint {manifest.name} is incomplete: " + "; ".join(map(str, gaps[:5])),
                means="the part of a writer is missing, so the checkpoint was not published",
            )
        lacking = [d for d in self._find_misfits(manifest) if d.file != MARKER]
        if lacking:
            raise StorageError(
                f"checkpoint {manifest.name} was not published: " + "; ".join(map(str, lacking)),
                means="the storage lacks data that a writer has reported",
            )
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        # The marker of an earlier attempt must not make a partial new manifest valid.
        self.storage.delete(f"{manifest.name}/{MARKER}")
        self.write(manifest.name, MANIFEST, [text])
        marker = CheckpointMarker(len(text), hashlib.sha256(text).hexdigest())
        self.write(manifest.name, MARKER, [msgspec.json.encode(marker)])
        return marker

    # -- looking -------------------------------------------------------------------------------------------

    def list_names(self) -> list[str]:
        """Return the names of all checkpoints, unfinished ones included, oldest first."""
        aged = {
            name: age
            for name in self.storage.list_directories()
            if (age := parse_checkpoint_age(name)) is not None
        }
        return sorted(aged, key=lambda name: aged[name])

    def inspect(self, name: str) -> Inspection:
        """Inspect marker, manifest and file sizes of a checkpoint, without reading data."""
        age = parse_checkpoint_age(name)
        if age is None:
            raise BadInput(f"invalid name of a checkpoint: {name}", do="write a name such as step-00001500")
        resumed, step = age
        summary = CheckpointSummary(name=name, state="unfinished", step=step, resumed=resumed)
        try:
            manifest = self.load_manifest(name)
        except NoSuchFile:
            return Inspection(summary)
        except BadInput as error:
            schema = (FileDamage(MANIFEST, error.what),)
            return Inspection(msgspec.structs.replace(summary, state="foreign", damages=schema))
        except Damaged as error:
            return Inspection(msgspec.structs.replace(summary, state="damaged", damages=error.damages))
        damages = tuple(self._find_misfits(manifest))
        summary = msgspec.structs.replace(
            summary,
            state="damaged" if damages else "complete",
            bytes=manifest.bytes,
            created=manifest.created,
            metrics=manifest.metrics,
            damages=damages,
        )
        return Inspection(summary, None if damages else manifest)

    def list_summaries(self) -> tuple[CheckpointSummary, ...]:
        """Return summaries of all checkpoints, oldest first."""
        return tuple(self.inspect(name).summary for name in self.list_names())

    def load_manifest(self, name: str) -> Manifest:
        """Return the manifest of a checkpoint, verified against its marker.

        Raises:
            NoSuchFile: it has no marker, so it is unfinished or does not exist.
            Damaged: the marker or the manifest has changed since the write.
            BadInput: a version with another schema wrote it.
        """
        try:
            marker_text = self.storage.read(f"{name}/{MARKER}")
        except UnreadableData as error:
            raise Damaged(name, (FileDamage(MARKER, error.what),)) from error
        try:
            marker = _decode_marker(marker_text)
        except Malformed as error:
            raise Damaged(name, (FileDamage(MARKER, f"is not a valid marker: {error}"),)) from error
        text = self._read_manifest(name)
        if len(text) != marker.bytes or hashlib.sha256(text).hexdigest() != marker.sha256:
            raise Damaged(name, (FileDamage(MANIFEST, f"does not match {MARKER}"),))
        try:
            schema = _decode_schema(text).schema
            if schema != SCHEMA:
                raise BadInput(
                    f"checkpoint {name} has schema {schema}; this version reads schema {SCHEMA}",
                    do="use the version of Elastane that wrote it",
                )
            return _decode_manifest(text)
        except Malformed as error:
            raise Damaged(name, (FileDamage(MANIFEST, f"is not a valid manifest: {error}"),)) from error

    def find_published(self, name: str) -> Manifest | None:
        """Return the manifest of a published checkpoint; None: it is not published or is damaged.

        Raises:
            BadInput: a version with another schema wrote it.
        """
        try:
            return self.load_manifest(name)
        except (NoSuchFile, Damaged):
            return None

    def _read_manifest(self, name: str) -> bytes:
        try:
            return self.storage.read(f"{name}/{MANIFEST}")
        except NoSuchFile as error:
            raise Damaged(name, (FileDamage(MANIFEST, "is missing"),)) from error
        except UnreadableData as error:
            raise Damaged(name, (FileDamage(MANIFEST, error.what),)) from error

    def _find_misfits(self, manifest: Manifest) -> Iterator[FileDamage]:
        sizes = self.storage.list_files(manifest.name)
        for part in manifest.parts:
            if part.name not in sizes:
                yield FileDamage(part.name, "is missing")
            elif sizes[part.name] != part.bytes:
                yield FileDamage(part.name, f"has {sizes[part.name]} bytes instead of {part.bytes}")

    # -- proving -------------------------------------------------------------------------------------------

    def verify(self, name: str) -> tuple[FileDamage, ...]:
        """Read every byte of a checkpoint and compare checksums; return the damage, empty if it is intact.

        Raises:
            NoSuchFile: it is unfinished or does not exist.
            BadInput: a version with another schema wrote it.
        """
        try:
            manifest = self.load_manifest(name)
        except Damaged as error:
            return error.damages
        with ThreadPoolExecutor(PARALLEL_FILES, "elastane-verify") as pool:
            verified = list(pool.map(lambda part: self._verify_part(name, part), manifest.parts))
        return (*(damage for damage in verified if damage), *find_gaps(manifest))

    def _verify_part(self, name: str, part: PartFile) -> FileDamage | None:
        try:
            with self.storage.open_file(f"{name}/{part.name}") as file:
                written = hash_file(file, self.storage.readers)
        except NoSuchFile:
            return FileDamage(part.name, "is missing")
        except UnreadableData as error:
            return FileDamage(part.name, error.what)
        if written.bytes != part.bytes:
            return FileDamage(part.name, f"has {written.bytes} bytes instead of {part.bytes}")
        if written.checksum != part.checksum:
            return FileDamage(part.name, f"its checksum is {written.checksum} instead of {part.checksum}")
        return None

    def restore_newest(self, attempt: Callable[[Manifest], T]) -> tuple[T, Manifest, tuple[Damaged, ...]]:
        """Restore the newest checkpoint that is intact.

        Args:
            attempt: restores from a manifest; raises `Damaged` if the data has changed since the write.

        Returns:
            The result of the attempt, the manifest, and the errors of newer checkpoints that were skipped.

        Raises:
            NoSuchFile: the run has no checkpoint.
            Damaged: the run has checkpoints, but none is intact.
        """
        skipped: list[Damaged] = []
        names = self.list_names()
        for name in reversed(names):
            inspection = self.inspect(name)
            if inspection.manifest is None:
                if inspection.summary.state != "unfinished":
                    skipped.append(Damaged(name, inspection.summary.damages))
                continue
            try:
                return attempt(inspection.manifest), inspection.manifest, tuple(skipped)
            except Damaged as error:
                skipped.append(error)
        if skipped:
            newest = skipped[0]
            raise Damaged(
                newest.checkpoint,
                newest.damages,
                means=f"none of the {len(names)} checkpoints in {self.storage.url} is intact",
            )
        raise NoSuchFile(
            f"{self.storage.url} holds no finished checkpoint",
            means=f"unfinished checkpoints: {len(names)}"
            if names
            else "they were moved or deleted, or their file system is not mounted",
            do="bring them back, or begin the run again with another --name or --run-dir",
        )

    # -- deleting ------------------------------------------------------------------------------------------

    def plan_pruning(
        self, rules: Retention, *, trusted: frozenset[str] = frozenset()
    ) -> tuple[Deletion, ...]:
        """Return the deletions of `prune`, after verifying the newest checkpoint, which must be intact.

        Args:
            trusted: checkpoints that need no verification, because this process has just written them.
        """
        summaries = list(self.list_summaries())
        while True:
            chosen = choose_deletions(summaries, rules)
            newest = max((s for s in summaries if s.state == "complete"), key=lambda s: s.age, default=None)
            if not chosen or newest is None or newest.name in trusted:
                return chosen
            damages = self.verify(newest.name)
            if not damages:
                return chosen
            number = summaries.index(newest)
            summaries[number] = msgspec.structs.replace(newest, state="damaged", damages=damages)

    def prune(self, rules: Retention, *, trusted: frozenset[str] = frozenset()) -> tuple[Deletion, ...]:
        """Delete the checkpoints that the rules do not retain; see `plan_pruning`."""
        chosen = self.plan_pruning(rules, trusted=trusted)
        for deletion in chosen:
            self.delete(deletion.name)
        return chosen

    def delete_leftovers(self, manifest: Manifest) -> None:
        """Delete the files of writers that a published checkpoint does not name: records, abandoned parts."""
        named = {part.name for part in manifest.parts}
        for file in self.storage.list_files(manifest.name):
            if file.startswith("part-") and file not in named:
                self.storage.delete(f"{manifest.name}/{file}")

    def delete(self, name: str) -> None:
        """Delete a checkpoint, its marker first: after a crash the rest is unfinished, not damaged."""
        self.storage.delete(f"{name}/{MARKER}")
        self.storage.delete_directory(name)


# -- the check that a checkpoint holds every element of every tensor exactly once ------------------------


def find_gaps(manifest: Manifest) -> tuple[FileDamage, ...]:
    """Return every tensor with a missing or repeated element; empty if the manifest is complete.

    A manifest is published only if this is empty: no other check notices a missing part of a dead writer.
    """
    return tuple(_find_problems(manifest))


def _find_problems(manifest: Manifest) -> Iterator[FileDamage]:
    tensors = manifest.tensors
    items: dict[str, list[PartItem]] = {key: [] for key in tensors}
    for part in manifest.parts:
        for key, facts in part.tensors.items():
            if facts != tensors[key]:
                yield FileDamage(
                    part.name, f"{key} is {_describe(facts)}, elsewhere {_describe(tensors[key])}"
                )
        for item in part.items:
            if item.key in items:
                items[item.key].append(item)
            else:
                yield FileDamage(part.name, f"holds {item.key}, which has no shape")
    for key, pieces in items.items():
        boxes = [Box(item.offsets, item.sizes) for item in pieces]
        if problem := find_tiling_problem(tensors[key].shape, boxes):
            yield FileDamage(key, problem)
    for alias, key in manifest.aliases.items():
        if key not in tensors:
            yield FileDamage(alias, f"is another name of {key}, which is not stored")


def _describe(facts: TensorFacts) -> str:
    return f"{facts.dtype} {list(facts.shape)} with strides {list(facts.stride)}"
