"""The records of a run that the controller of its job keeps, for machines without a shared directory.

Each machine has a run directory of its own, and a private file in it says where the records are kept. The
directory of the machine in charge is the original: what it has written there it sends to the controller.
Another machine that takes charge fetches it first.
"""

import errno
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from io import BufferedReader
from pathlib import Path
from typing import Annotated

import msgspec

from elastane.common.atomic_file import open_replacement, replace_file
from elastane.common.bodies import Page
from elastane.common.connections.controller_connection import (
    ControllerConnection,
    ControllerUnreachable,
    IncompatibleAnswer,
    NotFound,
    RequestRefused,
    trust_certificate,
)
from elastane.common.errors import BadInput
from elastane.common.untrusted_data import Decoder, Malformed
from elastane.run.nouns.record_parts import (
    APPENDED,
    AT_ONCE_BYTES,
    ENDPOINT,
    MOST_PARTS,
    PRIVATE,
    REPLACED,
    KeptRecord,
    NewRecords,
    RecordContent,
    RecordPart,
)
from elastane.run.nouns.rundir import RunDir

REQUEST_S = 3.0
"""The time limit of one request with its repetitions."""
LARGEST_ACCESS_BYTES = 16 << 10
SECRET_MODE = 0o600


class StoreAccess(msgspec.Struct, frozen=True):
    """Where the records of a run are kept, and the right to them.

    Args:
        url: of the controller.
        path: of the requests of this machine's agent, below the version of the API.
        token: the key of the agent's job ticket.
        certificate: of the controller, in PEM, if no authority of this machine vouches for it.
    """

    url: Annotated[str, msgspec.Meta(max_length=512)]
    path: Annotated[str, msgspec.Meta(max_length=128)]
    token: Annotated[str, msgspec.Meta(max_length=128)]
    certificate: Annotated[str, msgspec.Meta(max_length=4096)] = ""


_decode: Decoder[StoreAccess] = Decoder(StoreAccess, at_most_bytes=LARGEST_ACCESS_BYTES)


def write_store_access(run_dir: RunDir, access: StoreAccess) -> None:
    """Record in a run directory where the records of the run are kept.

    Raises:
        OSError: it cannot be written.
    """
    replace_file(run_dir.record_store, msgspec.json.encode(access), durable=False, mode=SECRET_MODE)


def find_record_store(run_dir: RunDir, *, timeout_s: float = REQUEST_S) -> "RecordStore | None":
    """Return what keeps the records of a run; None: the machines of the run share its directory.

    Raises:
        BadInput: the file that names it is damaged.
        OSError: it cannot be read.
    """
    try:
        content = run_dir.files.read(run_dir.record_store, LARGEST_ACCESS_BYTES)
        return RecordStore(_decode(content), timeout_s=timeout_s)
    except FileNotFoundError:
        return None
    except Malformed as error:
        raise BadInput(f"{run_dir.record_store} is damaged: {error}") from error


class RecordStore:
    """The records of one run at its controller. Several threads may share it.

    Its methods raise `ElastaneError` if the controller does not answer or refuses.
    """

    def __init__(self, access: StoreAccess, *, timeout_s: float = REQUEST_S) -> None:
        self.where = f"{access.url.rstrip('/')}/v1{access.path}"
        self._access, self._timeout_s = access, timeout_s
        self._lock = threading.Lock()
        self._connection: ControllerConnection | None = None

    @property
    def path(self) -> str:
        """The path of its requests."""
        return self._access.path

    @contextmanager
    def connect(self) -> Iterator[ControllerConnection]:
        """Yield the connection, to one thread at a time.

        Raises:
            ControllerUnreachable: the controller cannot answer now.
        """
        with self._lock, _translate_outage(self.where):
            if self._connection is None:
                access = self._access
                trust = trust_certificate(access.url, access.certificate)
                self._connection = ControllerConnection(
                    access.url, access.token, verify=trust, timeout_s=self._timeout_s
                )
                # As those of claim lists, it ends with its owner.
                weakref.finalize(self, self._connection.close)
            yield self._connection

    def list_records(self) -> dict[str, KeptRecord]:
        """Return the kept records by name."""
        with self.connect() as connection:
            found = connection.request("GET", f"{self.path}/records", Page[KeptRecord])
        return {record.name: record for record in found.items}

    def read(self, name: str) -> bytes | None:
        """Return a small record; None: none is kept."""
        return b"".join(parts) if (parts := tuple(self._read_parts(name))) else None

    def fetch(self, run_dir: RunDir, names: Iterable[str]) -> None:
        """Write records into a run directory, each at once; those that are not kept are left as they are.

        Raises:
            OSError: one cannot be written.
        """
        for name in names:
            parts = self._read_parts(name)
            if (first := next(parts, None)) is None:
                continue
            mode = SECRET_MODE if name in PRIVATE else 0o644
            with open_replacement(run_dir.root / name, durable=False, mode=mode) as file:
                file.write(first)
                for part in parts:
                    file.write(part)

    def _read_parts(self, name: str) -> Iterator[bytes]:
        """Yield a record in parts; none if it is not kept."""
        offset = 0
        while True:
            with self.connect() as connection:
                try:
                    part = connection.request(
                        "GET", f"{self.path}/records/{name}", RecordContent, params={"offset": offset or None}
                    )
                except NotFound:
                    if offset:
                        raise
                    return
            if not part.content and offset < part.size:
                raise IncompatibleAnswer(f"{self.where} sends nothing of {name} from byte {offset} on")
            yield part.content
            offset += len(part.content)
            if offset >= part.size:
                return

    def send(self, parts: Iterable[RecordPart], term: int = 0) -> None:
        """Send parts of records, in order, in as few requests as they need.

        Raises:
            OSError: a file of them cannot be read.
        """
        waiting: list[RecordPart] = []
        size = 0
        for part in parts:
            if waiting and (size + len(part.content) > AT_ONCE_BYTES or len(waiting) == MOST_PARTS):
                self._send(waiting, term)
                waiting, size = [], 0
            waiting.append(part)
            size += len(part.content)
        if waiting:
            self._send(waiting, term)

    def _send(self, parts: Iterable[RecordPart], term: int) -> None:
        with self.connect() as connection:
            connection.send("POST", f"{self.path}/records", body=NewRecords(term=term, parts=tuple(parts)))

    def send_results(self, run_dir: RunDir, names: Iterable[str]) -> None:
        """Send whole files that any machine of the run may have.

        Raises:
            OSError: one cannot be read.
        """
        self.send(part for name in names for part in cut_whole(run_dir, name))


def _open_record(run_dir: RunDir, name: str) -> BufferedReader:
    try:
        return run_dir.files.open(run_dir.root / name, in_part=True)
    except Malformed as error:
        raise OSError(errno.EINVAL, f"{name} is not a file of the run: {error}") from error


@contextmanager
def _translate_outage(where: str) -> Iterator[None]:
    try:
        yield
    except RequestRefused as error:
        if error.problem.status < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise
        raise ControllerUnreachable(f"{where} cannot answer now: {error.what}", do=error.do) from error


def cut_whole(run_dir: RunDir, name: str) -> Iterator[RecordPart]:
    """Yield a file of a run directory as parts that replace the kept record.

    Raises:
        OSError: it cannot be read.
    """
    with _open_record(run_dir, name) as file:
        offset, content = 0, file.read(AT_ONCE_BYTES)
        while True:
            following = file.read(AT_ONCE_BYTES)
            yield RecordPart(name=name, offset=offset, content=content, whole=True, end=not following)
            if not following:
                return
            offset, content = offset + len(content), following


def cut_end(run_dir: RunDir, name: str, begin: int, end: int) -> Iterator[RecordPart]:
    """Yield a part of a file as parts that follow the kept record.

    Args:
        begin: offset of the first byte.
        end: of the byte after the last one.

    Raises:
        OSError: it cannot be read.
    """
    with _open_record(run_dir, name) as file:
        file.seek(begin)
        while begin < end and (content := file.read(min(AT_ONCE_BYTES, end - begin))):
            yield RecordPart(name=name, offset=begin, content=content)
            begin += len(content)


def list_appended_sizes(records: Mapping[str, KeptRecord]) -> dict[str, int]:
    """Return the sizes of the records to which a run appends."""
    return {name: records[name].size for name in APPENDED if name in records}


class RecordSender:
    """Sends what this machine has written of a run's records. Several threads may share it.

    Args:
        term: of the coordinator of this machine, which is in charge.
        anew: the controller keeps the records of an earlier attempt; otherwise the kept lines are the first
            ones of those here.
    """

    def __init__(self, store: RecordStore, run_dir: RunDir, term: int, *, anew: bool) -> None:
        self._store, self._run_dir, self._term, self._anew = store, run_dir, term, anew
        self._sizes: dict[str, int] | None = None
        self._stamps: dict[str, tuple[int, int, int]] = {}
        self._lock = threading.Lock()

    def send_new(self, *, renew: bool = False) -> None:
        """Send what the controller lacks; it keeps all that was written here before, once this returns.

        Args:
            renew: send the endpoint in any case, as a sign of life.

        Raises:
            ElastaneError: the controller does not answer, or another machine is in charge.
            OSError: a file cannot be read here.
        """
        with self._lock:
            try:
                self._send_new(renew=renew)
            except BaseException:
                # Some of it may have arrived.
                self._sizes = None
                raise

    def _send_new(self, *, renew: bool) -> None:
        if self._sizes is None:
            self._sizes = {} if self._anew else list_appended_sizes(self._store.list_records())
        sizes = {name: path.stat().st_size for name in APPENDED if (path := self._find(name)).exists()}
        stamps = self._find_stamps()
        changed = [
            name
            for name, stamp in stamps.items()
            if stamp != self._stamps.get(name) or (renew and name == ENDPOINT)
        ]
        self._store.send(self._cut(sizes, self._sizes, changed), self._term)
        self._sizes, self._stamps, self._anew = sizes, stamps, False

    def _cut(
        self, sizes: Mapping[str, int], known: Mapping[str, int], changed: Iterable[str]
    ) -> Iterator[RecordPart]:
        for name, size in sizes.items():
            if self._anew or size < known.get(name, 0):
                yield from cut_whole(self._run_dir, name)
            elif size > known.get(name, 0):
                yield from cut_end(self._run_dir, name, known.get(name, 0), size)
        for name in changed:
            yield from cut_whole(self._run_dir, name)

    def _find_stamps(self) -> dict[str, tuple[int, int, int]]:
        found = {}
        for name in REPLACED:
            try:
                facts = self._find(name).stat()
            except FileNotFoundError:
                continue
            # The sign of life of a coordinator changes the time of its endpoint.
            changed_ns = 0 if name == ENDPOINT else facts.st_mtime_ns
            found[name] = (facts.st_ino, changed_ns, facts.st_size)
        return found

    def _find(self, name: str) -> Path:
        return self._run_dir.root / name
