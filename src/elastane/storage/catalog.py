"""The checkpoints under one root: published, looked at, verified, found again, deleted."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from elastane.api.checkpoints import (
    MANIFEST,
    MARKER,
    SCHEMA,
    CheckpointMarker,
    CheckpointSummary,
    Deletion,
    FileDamage,
    Manifest,
    PartFile,
    Retention,
    WrittenFile,
    parse_checkpoint_age,
)
from elastane.api.errors import BadInput, Damaged, NoSuchFile, StorageError, UnreadableData
from elastane.api.untrusted_data import Decoder, Malformed
from elastane.checkpointing.coverage import find_gaps
from elastane.checkpointing.retention import choose_deletions
from elastane.storage.hashing import hash_file
from elastane.storage.interface import Bytes, Storage

T = TypeVar("T")

AT_ONCE = 2
"""Files verified at a time, each with readers of its own."""


class Schema(msgspec.Struct, frozen=True):
    """What every manifest says, whatever else it says."""

    schema: int


LARGEST_MANIFEST_BYTES = 1 << 30
"""It names every rectangle of every tensor."""

_marker_in = Decoder[CheckpointMarker](CheckpointMarker, at_most_bytes=1 << 16)
_schema_in = Decoder[Schema](Schema, at_most_bytes=LARGEST_MANIFEST_BYTES)
_manifest_in = Decoder[Manifest](Manifest, at_most_bytes=LARGEST_MANIFEST_BYTES)


class Inspection(msgspec.Struct, frozen=True):
    """A checkpoint at a glance; ``manifest`` only if it is complete."""

    summary: CheckpointSummary
    manifest: Manifest | None = None


class Catalog:
    """All checkpoints of a run.

    Args:
        storage: with their root.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    # -- writing -------------------------------------------------------------------------------------------

    def write(self, checkpoint: str, file: str, buffers: Iterable[Bytes]) -> WrittenFile:
        """Write one file of a checkpoint; durable when this returns.

        Raises:
            StorageError: it could not be written; the checkpoint stays unfinished.
        """
        return self.storage.write(f"{checkpoint}/{file}", buffers)

    def read(self, checkpoint: str, file: str) -> bytes:
        """Return the content of a small file of a checkpoint.

        Raises:
            StorageError: it cannot be read.
        """
        return self.storage.read(f"{checkpoint}/{file}")

    def publish(self, manifest: Manifest) -> CheckpointMarker:
        """Make a checkpoint exist: manifest, then marker. All its files must have been written before.

        An earlier attempt under the same name is overwritten, its marker first.

        Raises:
            BadInput: the manifest lacks elements; nothing was written.
            StorageError: a file is missing or has another size, or could not be written.
        """
        gaps = find_gaps(manifest)
        if gaps:
            raise BadInput(
                f"checkpoint {manifest.name} is not whole: " + "; ".join(map(str, gaps[:5])),
                means="a writer is missing, so it was not published",
            )
        lacking = [d for d in self._misfits(manifest) if d.file != MARKER]
        if lacking:
            raise StorageError(
                f"checkpoint {manifest.name} was not published: " + "; ".join(map(str, lacking)),
                means="what a writer reported is not on the storage",
            )
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        # A marker of an earlier attempt must not vouch for half of a new manifest.
        self.storage.delete(f"{manifest.name}/{MARKER}")
        self.write(manifest.name, MANIFEST, [text])
        marker = CheckpointMarker(len(text), hashlib.sha256(text).hexdigest())
        self.write(manifest.name, MARKER, [msgspec.json.encode(marker)])
        return marker

    # -- looking -------------------------------------------------------------------------------------------

    def list_names(self) -> list[str]:
        """Of all checkpoints, unfinished ones too, in the order they were made."""
        aged = {
            name: age
            for name in self.storage.list_directories()
            if (age := parse_checkpoint_age(name)) is not None
        }
        return sorted(aged, key=lambda name: aged[name])

    def inspect(self, name: str) -> Inspection:
        """A checkpoint at a glance: marker, manifest and the sizes of the files; no data is read.

        Raises:
            StorageError: the storage does not answer.
        """
        age = parse_checkpoint_age(name)
        if age is None:
            raise BadInput(f"{name} is no name of a checkpoint", do="they look like step-00001500")
        resumed, step = age
        found = CheckpointSummary(name=name, state="unfinished", step=step, resumed=resumed)
        try:
            manifest = self.load_manifest(name)
        except NoSuchFile:
            return Inspection(found)
        except BadInput as error:
            schema = (FileDamage(MANIFEST, error.what),)
            return Inspection(msgspec.structs.replace(found, state="foreign", damages=schema))
        except Damaged as error:
            return Inspection(msgspec.structs.replace(found, state="damaged", damages=error.damages))
        damages = tuple(self._misfits(manifest))
        found = msgspec.structs.replace(
            found,
            state="damaged" if damages else "complete",
            bytes=manifest.bytes,
            created=manifest.created,
            metrics=manifest.metrics,
            damages=damages,
        )
        return Inspection(found, None if damages else manifest)

    def list_summaries(self) -> tuple[CheckpointSummary, ...]:
        """All checkpoints at a glance, oldest first."""
        return tuple(self.inspect(name).summary for name in self.list_names())

    def load_manifest(self, name: str) -> Manifest:
        """The manifest of a checkpoint, proved by its marker.

        Raises:
            NoSuchFile: it has no marker: it was never finished, or does not exist.
            Damaged: marker or manifest are not what was written.
            BadInput: written by a version with another schema.
            StorageError: the storage does not answer.
        """
        try:
            marker_text = self.storage.read(f"{name}/{MARKER}")
        except UnreadableData as error:
            raise Damaged(name, (FileDamage(MARKER, error.what),)) from error
        try:
            marker = _marker_in(marker_text)
        except Malformed as error:
            raise Damaged(name, (FileDamage(MARKER, f"is no marker: {error}"),)) from error
        text = self._text_of(name)
        if len(text) != marker.bytes or hashlib.sha256(text).hexdigest() != marker.sha256:
            raise Damaged(name, (FileDamage(MANIFEST, f"is not the one that {MARKER} was written for"),))
        try:
            schema = _schema_in(text).schema
            if schema != SCHEMA:
                raise BadInput(
                    f"checkpoint {name} has schema {schema}; this version reads schema {SCHEMA}",
                    do="use the version of elastane that wrote it",
                )
            return _manifest_in(text)
        except Malformed as error:
            raise Damaged(name, (FileDamage(MANIFEST, f"is no manifest: {error}"),)) from error

    def find_published(self, name: str) -> Manifest | None:
        """Return the manifest of a published checkpoint; None: it is not published, or damaged.

        Raises:
            BadInput: written by a version with another schema.
            StorageError: the storage does not answer.
        """
        try:
            return self.load_manifest(name)
        except (NoSuchFile, Damaged):
            return None

    def _text_of(self, name: str) -> bytes:
        try:
            return self.storage.read(f"{name}/{MANIFEST}")
        except NoSuchFile as error:
            raise Damaged(name, (FileDamage(MANIFEST, "is missing"),)) from error
        except UnreadableData as error:
            raise Damaged(name, (FileDamage(MANIFEST, error.what),)) from error

    def _misfits(self, manifest: Manifest) -> Iterator[FileDamage]:
        sizes = self.storage.list_files(manifest.name)
        for part in manifest.parts:
            if part.name not in sizes:
                yield FileDamage(part.name, "is missing")
            elif sizes[part.name] != part.bytes:
                yield FileDamage(part.name, f"has {sizes[part.name]} bytes instead of {part.bytes}")

    # -- proving -------------------------------------------------------------------------------------------

    def verify(self, name: str) -> tuple[FileDamage, ...]:
        """Read every byte of a checkpoint and compare; nothing is returned if it is good.

        Raises:
            NoSuchFile: it was never finished, or does not exist.
            BadInput: written by a version with another schema.
            StorageError: the storage does not answer.
        """
        try:
            manifest = self.load_manifest(name)
        except Damaged as error:
            return error.damages
        with ThreadPoolExecutor(AT_ONCE, "elastane-verify") as pool:
            judged = list(pool.map(lambda part: self._judged(name, part), manifest.parts))
        return (*(damage for damage in judged if damage), *find_gaps(manifest))

    def _judged(self, name: str, part: PartFile) -> FileDamage | None:
        try:
            with self.storage.open_file(f"{name}/{part.name}") as file:
                now = hash_file(file, self.storage.readers)
        except NoSuchFile:
            return FileDamage(part.name, "is missing")
        except UnreadableData as error:
            return FileDamage(part.name, error.what)
        if now.bytes != part.bytes:
            return FileDamage(part.name, f"has {now.bytes} bytes instead of {part.bytes}")
        if now.checksum != part.checksum:
            return FileDamage(part.name, f"its checksum is {now.checksum} instead of {part.checksum}")
        return None

    def restore_newest(self, attempt: Callable[[Manifest], T]) -> tuple[T, Manifest, tuple[Damaged, ...]]:
        """Try checkpoints from the newest on, until one does.

        Args:
            attempt: restores from a manifest; raises `Damaged` when the data is not what was written.

        Returns:
            What the attempt returned, the manifest, and the newer ones that had to be passed over.

        Raises:
            NoSuchFile: there is no checkpoint at all.
            Damaged: there are some, and none is good.
            StorageError: the storage does not answer.
        """
        passed: list[Damaged] = []
        names = self.list_names()
        for name in reversed(names):
            looked = self.inspect(name)
            if looked.manifest is None:
                if looked.summary.state != "unfinished":
                    passed.append(Damaged(name, looked.summary.damages))
                continue
            try:
                return attempt(looked.manifest), looked.manifest, tuple(passed)
            except Damaged as error:
                passed.append(error)
        if passed:
            newest = passed[0]
            raise Damaged(
                newest.checkpoint,
                newest.damages,
                means=f"none of the {len(names)} checkpoints in {self.storage.url} is good",
            )
        raise NoSuchFile(
            f"{self.storage.url} holds no finished checkpoint",
            means=f"{len(names)} were begun and never finished" if names else "",
        )

    # -- deleting ------------------------------------------------------------------------------------------

    def plan_pruning(
        self, rules: Retention, *, trusted: frozenset[str] = frozenset()
    ) -> tuple[Deletion, ...]:
        """What `prune` would delete, after reading the newest checkpoint: it is kept for being good.

        Args:
            rules: what to keep.
            trusted: checkpoints not to be read, because they have just been written here.
        """
        found = list(self.list_summaries())
        while True:
            chosen = choose_deletions(found, rules)
            newest = max((s for s in found if s.state == "complete"), key=lambda s: s.age, default=None)
            if not chosen or newest is None or newest.name in trusted:
                return chosen
            damages = self.verify(newest.name)
            if not damages:
                return chosen
            number = found.index(newest)
            found[number] = msgspec.structs.replace(newest, state="damaged", damages=damages)

    def prune(self, rules: Retention, *, trusted: frozenset[str] = frozenset()) -> tuple[Deletion, ...]:
        """Delete what the rules do not keep; see `plan_pruning`."""
        chosen = self.plan_pruning(rules, trusted=trusted)
        for deletion in chosen:
            self.delete(deletion.name)
        return chosen

    def delete_leftovers(self, manifest: Manifest) -> None:
        """Delete files of writers that a published checkpoint does not name: records and abandoned parts."""
        named = {part.name for part in manifest.parts}
        for file in self.storage.list_files(manifest.name):
            if file.startswith("part-") and file not in named:
                self.storage.delete(f"{manifest.name}/{file}")

    def delete(self, name: str) -> None:
        """Delete a checkpoint, the marker first: what a crash leaves behind is unfinished, not damaged."""
        self.storage.delete(f"{name}/{MARKER}")
        self.storage.delete_directory(name)
