"""The page of one run, without a controller: its records are read from its directory."""

import hmac
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from elastane.cluster.dashboard.job_records import KEEP_WORKERS_S
from elastane.cluster.dashboard.rendering import DrawnPages, PageContent
from elastane.cluster.dashboard.run_pictures import RunPictures
from elastane.cluster.dashboard.run_records import RunRecords
from elastane.cluster.dashboard.worker_rows import ACTIVITY_WORDS, group_workers
from elastane.cluster.nouns.job_workers import JobWorker, list_job_workers
from elastane.cluster.nouns.rest import ReadRecord
from elastane.common.errors import BadInput, ElastaneError
from elastane.common.untrusted_data import Malformed
from elastane.run.connections.coordinator_request import ask_coordinator
from elastane.run.connections.run_lock import is_live
from elastane.run.nouns.control import AskStatus
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.report import list_tiles
from elastane.run.observability.run_files import Recorded, read_record

ANSWER_S = 1.0
PART_BYTES = 4 << 20
EACH_S = 0.6


class RunFeed:
    """The records of one run, read on while pages show them.

    Attributes:
        refusal: always empty: the key of a run stays valid.
        is_over: always False.
    """

    refusal = ""
    is_over = False

    def __init__(self, root: str) -> None:
        self.run_dir = RunDir(Path(root))
        self.drawn = DrawnPages()
        self.pictures = RunPictures()
        self._lock = threading.Lock()
        self._looked_s = -1e9
        self._records = RunRecords()
        self._workers: tuple[JobWorker, ...] = ()
        self._workers_s = -1e9

    def touch(self) -> None:
        """Do nothing: reading needs no connection that could be closed."""

    def look(self) -> tuple[Recorded, tuple[JobWorker, ...]]:
        """Return the records of the run, read less than a second ago, and its workers while it is live."""
        with self._lock:
            now_s, live = time.monotonic(), is_live(self.run_dir)
            if now_s - self._looked_s > EACH_S:
                self._looked_s = now_s
                try:
                    self._records.read(self._read_part)
                except (OSError, Malformed) as error:
                    raise BadInput(f"the records of {self.run_dir.root} cannot be read: {error}") from error
                self._read_workers(now_s, live=live)
            recorded = Recorded(
                run_dir=self.run_dir,
                record=read_record(self.run_dir),
                ledger=tuple(self._records.ledger.lines),
                events=tuple(self._records.events.lines),
                live=live,
            )
            return recorded, self._workers

    def _read_part(self, record: ReadRecord, offset: int) -> tuple[bytes, int]:
        try:
            with self.run_dir.files.open(self.run_dir.root / record, in_part=True) as file:
                begin = min(offset, file.seek(0, os.SEEK_END))
                file.seek(begin)
                data = file.read(PART_BYTES)
        except FileNotFoundError:
            return b"", offset
        return data, begin + len(data)

    def _read_workers(self, now_s: float, *, live: bool) -> None:
        if live:
            # While a coordinator is replaced, the run goes on, and the page shows its records.
            with suppress(ElastaneError, OSError):
                answer = ask_coordinator(self.run_dir, AskStatus(), ANSWER_S)
                self._workers_s, self._workers = now_s, list_job_workers(answer.processes)
        if not live or now_s - self._workers_s > KEEP_WORKERS_S:
            self._workers = ()


class RunFeeds:
    """The feed of the run, for those that have the key."""

    def __init__(self, root: str, key: str) -> None:
        self._key = key
        self._feed = RunFeed(root)

    def find(self, token: str) -> RunFeed:
        """Return the feed of the run."""
        if not hmac.compare_digest(token.encode(), self._key.encode()):
            raise BadInput("this key is not known here", do="use the address that elastane dashboard printed")
        return self._feed

    def close(self) -> None:
        """Do nothing: there are no connections."""


def build_run_page(feed: RunFeed) -> PageContent:
    run, workers = feed.look()
    drawn = feed.pictures.draw(run)
    machines = group_workers(workers, drawn["worker_shares"], drawn["virtual_ranks"])
    return PageContent(
        title=run.record.spec.name,
        template="run.html",
        parts=("run_head", "run_chart", "run_workers", "run_history", "run_tables"),
        facts={
            "run": run,
            "now_s": time.time(),
            "tiles": list_tiles(drawn["run_facts"]),
            "machines": machines,
            "activity_words": ACTIVITY_WORDS,
            **drawn,
        },
    )
