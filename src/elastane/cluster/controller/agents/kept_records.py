"""The records of jobs on machines without a shared directory, kept in the run directories of the controller.

All that reads a run directory there works as on shared ones. Agents are not trusted: they write files of
known names only, through no link, up to a limit, and records of the run only with the newest term.
"""

import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from elastane.cluster.controller.agents.agent_job import locate_run_dir
from elastane.common.errors import BadInput
from elastane.common.untrusted_data import Malformed
from elastane.run.machines.claims.directory import DirectoryPlace
from elastane.run.machines.claims.history import find_newest_term
from elastane.run.machines.claims.records import HeldSlot, decode_content
from elastane.run.nouns.record_parts import (
    APPENDED,
    AT_ONCE_BYTES,
    PRIVATE,
    REPLACED,
    KeptRecord,
    NewRecords,
    RecordContent,
    RecordPart,
    find_limit_bytes,
    is_appended,
    is_fenced,
    is_result,
)
from elastane.run.nouns.rundir import CLAIMS, RunDir

REMEMBERED = 10_000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class RecordsRefused(BadInput):
    """The records were not taken."""


class KeptRecords:
    """The records of one job, in its run directory."""

    def __init__(self, root: Path) -> None:
        self._run_dir = RunDir(root)
        self._lock = threading.Lock()
        self.place = DirectoryPlace(root / CLAIMS)

    def prepare(self) -> None:
        """Make the directory, if it is missing."""
        (self._run_dir.root / CLAIMS).mkdir(parents=True, exist_ok=True)

    def list_records(self) -> tuple[KeptRecord, ...]:
        """Return the records that are kept of the run, and its logs."""
        files, root = self._run_dir.files, self._run_dir.root
        names = [*APPENDED, *REPLACED]
        with suppress(Malformed):
            names += [f"logs/{name}" for name in files.list_files(self._run_dir.logs)]
        found = []
        for name in names:
            with suppress(FileNotFoundError, Malformed), files.open(root / name, in_part=True) as file:
                facts = os.fstat(file.fileno())
                changed_us = facts.st_mtime_ns // 1000
                found.append(KeptRecord(name=name, size=facts.st_size, changed_us=changed_us))
        return tuple(found)

    def read(self, name: str, offset: int) -> RecordContent | None:
        """Return a part of a record of the run; None: it is not kept.

        Raises:
            OSError: it cannot be read.
        """
        if not is_fenced(name):
            return None
        try:
            with self._run_dir.files.open(self._run_dir.root / name, in_part=True) as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(min(offset, size))
                return RecordContent(content=file.read(AT_ONCE_BYTES), size=size)
        except (FileNotFoundError, Malformed):
            return None

    def write(self, new: NewRecords) -> None:
        """Write parts of records, in order.

        Raises:
            RecordsRefused: another term is in charge, a part does not follow the kept ones, or a name or a
                size is not allowed.
            ElastaneError: the claims cannot be read now.
            OSError: the disk refuses them.
        """
        for part in new.parts:
            _check_part(part)
        with self._lock:
            if any(is_fenced(part.name) for part in new.parts):
                self._check_term(new.term)
            for part in new.parts:
                self._write_part(part)

    def _check_term(self, term: int) -> None:
        contents = self.place.read(1)
        newest = find_newest_term(
            [HeldSlot(slot, decode_content(content)) for slot, content in enumerate(contents, start=1)]
        )
        present = 0 if newest is None else newest.number
        if term != present or not term:
            raise RecordsRefused(
                f"term {term} is not in charge of this run: the newest one is {present}",
                means="the records of another coordinator count; nothing was written",
                do="end this coordinator",
            )

    def _write_part(self, part: RecordPart) -> None:
        *folders, name = part.name.split("/")
        with _open_folder(self._run_dir.root, folders) as folder:
            target = f".{name}.partial" if part.whole else name
            if part.whole and not part.offset:
                # What a dead sender has left may be a link.
                with suppress(FileNotFoundError):
                    os.unlink(target, dir_fd=folder)
            file = os.open(target, _FILE, 0o600 if name in PRIVATE else 0o644, dir_fd=folder)
            try:
                _put(file, part)
            finally:
                os.close(file)
            if not part.whole or not part.end:
                return
            if part.offset or part.content:
                os.replace(target, name, src_dir_fd=folder, dst_dir_fd=folder)
            else:
                os.unlink(target, dir_fd=folder)
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
            os.fsync(folder)


def _check_part(part: RecordPart) -> None:
    name = part.name
    if not is_fenced(name) and not is_result(name):
        raise RecordsRefused(f"{name!r} is not the name of a record", means="nothing was written")
    if not part.whole and not is_appended(name):
        raise RecordsRefused(f"{name} is sent as a whole", means="nothing was written")
    if part.offset + len(part.content) > find_limit_bytes(name):
        raise RecordsRefused(
            f"{name} would have more than {find_limit_bytes(name)} bytes", means="nothing was written"
        )


def _put(file: int, part: RecordPart) -> None:
    facts = os.fstat(file)
    if not stat.S_ISREG(facts.st_mode) or facts.st_nlink != 1:
        raise RecordsRefused(f"{part.name} is not a file of its own", means="it was not written")
    if part.offset > facts.st_size:
        raise RecordsRefused(
            f"{part.name} has {facts.st_size} bytes, so byte {part.offset} cannot follow",
            means="it was not written",
            do="ask for the sizes, and send the missing bytes",
        )
    os.ftruncate(file, part.offset)
    rest, offset = memoryview(part.content), part.offset
    while rest:
        written = os.pwrite(file, rest, offset)
        rest, offset = rest[written:], offset + written
    if is_fenced(part.name) or part.end:
        os.fsync(file)


@contextmanager
def _open_folder(root: Path, folders: list[str]) -> Iterator[int]:
    """Yield a folder below a directory as a descriptor; make it, and follow no link to it."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            with suppress(FileExistsError):
                os.mkdir(folder, 0o755, dir_fd=descriptor)
            inner = os.open(folder, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


class RecordKeeper:
    """Keeps the records of all jobs, in the directory of the controller."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._kept: OrderedDict[str, KeptRecords] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, job: str) -> KeptRecords:
        """Return the records of a job, with a directory for them."""
        with self._lock:
            kept = self._kept.pop(job, None) or KeptRecords(locate_run_dir(self._home, job))
            self._kept[job] = kept
            if len(self._kept) > REMEMBERED:
                self._kept.popitem(last=False)
        kept.prepare()
        return kept
