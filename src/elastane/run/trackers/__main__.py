"""``python -m elastane.run.trackers RUN_DIR``: feed the trackers of a run.

The attempt of a run starts it, and restarts it if it dies. When its standard input ends, the run is over: the
process passes on the remaining records and ends. By hand, it catches up what a tracker has missed:

  $ python -m elastane.run.trackers RUN_DIR < /dev/null
"""

import argparse
import fcntl
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from elastane.common.errors import BadInput, ElastaneError
from elastane.common.safe_text import escape_line
from elastane.run.nouns.notices import withstand_notices
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.trackers import Tracker
from elastane.run.observability.facts import find_outcome
from elastane.run.observability.run_files import read_events, read_record
from elastane.run.trackers.feeding import Feed, Subject, wait_for_feeds
from elastane.run.trackers.parameters import describe_tracked_run
from elastane.run.trackers.row_sources import RecordedRows
from elastane.run.trackers.tracker import Outcome, TrackedRun, make_store
from elastane.run.trackers.tracker_requests import TrackerRequests

NICE = 10
POLL_S = 0.5
GRACE_S = 30.0
LOCK_S = 60.0
OUTCOMES: tuple[Outcome, ...] = ("finished", "stopped", "failed")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m elastane.run.trackers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_dir", type=Path)
    parser.add_argument(
        "--grace", type=float, default=GRACE_S, help="seconds for the remaining records (default: 30)"
    )
    options = parser.parse_args()
    withstand_notices()
    # Training comes first.
    os.nice(NICE)
    run_dir = RunDir(options.run_dir.absolute())
    try:
        lock_trackers(run_dir)
        code = feed_trackers(run_dir, options.grace)
    except (ElastaneError, OSError) as error:
        sys.exit(f"trackers: {error}")
    # A thread of another library may hang.
    sys.stderr.flush()
    os._exit(code)


def lock_trackers(run_dir: RunDir) -> None:
    """Lock the trackers of a run until this process ends: two processes would repeat each other's rows.

    Raises:
        BadInput: another process holds it.
        OSError: its file cannot be opened.
    """
    lock = os.open(run_dir.trackers.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    give_up = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise BadInput(f"another process feeds the trackers of {run_dir.root}") from None
            time.sleep(POLL_S)
        else:
            return


def feed_trackers(run_dir: RunDir, grace_s: float) -> int:
    """Feed the trackers of a run until standard input ends; return the exit code.

    Raises:
        ElastaneError: the record of the run cannot be read.
        OSError: the same.
    """
    ending = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ending,), daemon=True).start()
    requests = TrackerRequests(run_dir, read_record(run_dir).spec.log)
    broken: set[int] = set()
    feeds: dict[Tracker, Feed] = {}
    while True:
        last = ending.is_set()
        for name in sorted(requests.read() - feeds.keys()):
            feeds[name] = start_feed(name, make_subject(run_dir, broken), ending)
        if last:
            break
        ending.wait(POLL_S)
    late = wait_for_feeds(list(feeds.values()), grace_s)
    for feed in late:
        why = f": {feed.error}" if feed.error else ""
        print_line(f"{feed.name} has nothing after step {feed.step}{why}")
    if late:
        print_line(f"python -m elastane.run.trackers {run_dir.root} < /dev/null tries again")
    return 1 if late else 0


def start_feed(name: Tracker, subject: Subject, ending: threading.Event) -> Feed:
    """Start feeding a tracker.

    Raises:
        MissingExtra: its package is not installed.
    """
    feed = Feed(name, make_store(name), subject, ending, print_line)
    threading.Thread(target=feed.run, name=f"elastane-{name}", daemon=True).start()
    return feed


def make_subject(run_dir: RunDir, broken: set[int]) -> Subject:
    """Return the run in a directory; ``broken`` collects the steps of lines that cannot be read."""

    def describe() -> TrackedRun | None:
        record = read_record(run_dir)
        return None if record.pinned is None else describe_tracked_run(run_dir, record)

    def report_broken(step: int) -> None:
        if not broken:
            print_line(f"line {step} of {run_dir.ledger} cannot be read: trackers lack this step")
        broken.add(step)

    def find_run_outcome() -> Outcome:
        found, _ = find_outcome(read_events(run_dir, torn_tail=True), live=False)
        return next((outcome for outcome in OUTCOMES if outcome == found), "interrupted")

    return Subject(describe, lambda first: RecordedRows(run_dir, first, report_broken), find_run_outcome)


def print_line(line: str) -> None:
    """Print a line for the attempt that has started this process."""
    # The attempt may have been killed.
    with suppress(OSError):
        sys.stdout.write(f"{escape_line(line)}\n")
        sys.stdout.flush()


def _wait_for_end(ending: threading.Event) -> None:
    while os.read(0, 1):
        pass
    ending.set()


if __name__ == "__main__":
    main()
