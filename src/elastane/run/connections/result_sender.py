"""What one machine of a run sends to the controller of its job: logs, artifacts and the finished model.

Logs and artifacts arrive some seconds late. What a machine has written just before it was lost is lost
with it.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self

import msgspec

from elastane.common.errors import ElastaneError
from elastane.common.untrusted_data import Malformed
from elastane.run.connections.record_store import RecordStore, cut_end, cut_whole, find_record_store
from elastane.run.nouns.record_parts import LARGEST_LOG_BYTES, RecordPart, is_log, is_result
from elastane.run.nouns.rundir import RunDir

EVERY_S = 2.0
SETTLED_S = 1.0
"""An artifact that was written before this time is complete."""
LAST_S = 60.0
"""How long the last ones may take at the end."""
GIVE_UP_S = 600.0
"""How long the controller may be away when the model is finished."""
AGAIN_S = 1.0


class ResultSender:
    """Sends the logs and artifacts in a run directory while the context lasts, and the last at its end."""

    def __init__(self, store: RecordStore, run_dir: RunDir, clock: Callable[[], float] = time.time) -> None:
        self._store, self._run_dir, self._clock = store, run_dir, clock
        self._ending = threading.Event()
        self._begins: dict[str, int] = {}
        """Where the logs of this machine begin in those of the same names that are kept."""
        self._sent: dict[str, int] = {}
        self._artifacts: set[str] = set()
        self._is_known = False
        self._thread = threading.Thread(target=self._keep_sending, name="elastane-results", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join()
        give_up_s = time.monotonic() + LAST_S
        while not self.send_new(settled_s=0.0) and time.monotonic() < give_up_s:
            time.sleep(EVERY_S / 2)

    def _keep_sending(self) -> None:
        while not self._ending.wait(EVERY_S):
            self.send_new()

    def send_new(self, *, settled_s: float = SETTLED_S) -> bool:
        """Send the new ones; return False if that is not possible now."""
        try:
            if not self._is_known:
                kept = self._store.list_records()
                self._begins = {name: record.size for name, record in kept.items() if is_log(name)}
                self._sent, self._is_known = {}, True
            sent, artifacts = dict(self._sent), set(self._artifacts)
            self._store.send(self._cut(sent, artifacts, settled_s))
        except (ElastaneError, OSError, Malformed):
            # What has arrived of it will be replaced by the same bytes.
            return False
        self._sent, self._artifacts = sent, artifacts
        return True

    def _cut(self, sent: dict[str, int], artifacts: set[str], settled_s: float) -> Iterator[RecordPart]:
        for process, size in self._run_dir.files.list_files(self._run_dir.logs).items():
            name = f"logs/{process}"
            begin, known = self._begins.get(name, 0), sent.get(name, 0)
            if not is_log(name) or size <= known or begin + size > LARGEST_LOG_BYTES:
                continue
            for part in cut_end(self._run_dir, name, known, size):
                yield msgspec.structs.replace(part, offset=begin + part.offset)
            sent[name] = size
        for name in self._list_artifacts(settled_s):
            if name not in artifacts:
                yield from cut_whole(self._run_dir, name)
                artifacts.add(name)

    def _list_artifacts(self, settled_s: float) -> Iterator[str]:
        root, files = self._run_dir.artifacts, self._run_dir.files
        before_s = self._clock() - settled_s
        for folder in files.list_folders(root):
            for file in files.list_files(root / folder):
                name = f"{root.name}/{folder}/{file}"
                with suppress(FileNotFoundError):
                    if is_result(name) and (root / folder / file).stat().st_mtime <= before_s:
                        yield name


def send_model(files: RunDir, names: Iterable[str]) -> None:
    """Send the files of the finished model, the one last without which a reader finds no model.

    Args:
        names: of the files, in the run directory.

    Raises:
        OSError: the controller did not take them for `GIVE_UP_S`.
    """
    store = find_record_store(files)
    assert store is not None, "a private directory names the store"
    markers = (files.model_files.weights.name, files.model_files.weight_index.name)
    ordered = sorted(names, key=lambda name: (name in markers, markers.index(name) if name in markers else 0))
    give_up_s = time.monotonic() + GIVE_UP_S
    while True:
        try:
            return store.send_results(files, ordered)
        except ElastaneError as error:
            if time.monotonic() > give_up_s:
                raise OSError(f"the controller of the job did not take it: {error.what}") from error
        time.sleep(AGAIN_S)
