"""The run directory of an agent that shares none: fetched at the beginning, and sent as it grows."""

import os
import shutil
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from elastane.cluster.nouns.job_tickets import JobTicket, encode_credentials
from elastane.cluster.nouns.jobs import JobSpec
from elastane.common.connections.controller_connection import RequestRefused
from elastane.common.errors import BadInput, ElastaneError, NoSuchRun
from elastane.common.home import find_home, make_home
from elastane.run.agent.presence import hold_presence, is_any_process_present
from elastane.run.attempts.attempt_file import read_attempt
from elastane.run.connections.record_store import (
    RecordSender,
    RecordStore,
    StoreAccess,
    find_record_store,
    write_store_access,
)
from elastane.run.connections.result_sender import ResultSender
from elastane.run.machines.claims.history import find_newest_term
from elastane.run.machines.claims.urls import open_claims
from elastane.run.nouns.checkpoint_policy import parse_checkpoint_policy
from elastane.run.nouns.hosts import derive_node_name
from elastane.run.nouns.record_parts import APPENDED, ENDPOINT, REPLACED, RecordPart
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import read_record

FOLDER = "agent-runs"
ALL_RECORDS = tuple(name for name in (*APPENDED, *REPLACED) if name != ENDPOINT)
"""What an agent fetches that begins an attempt."""
JOIN_RECORDS = ("secret", "certificate.pem", "run.json", ENDPOINT)
"""What one fetches that joins it."""
FETCH_S = 30.0
GIVE_UP_S = 600.0
"""How long the controller may be away when a run has ended."""
AGAIN_S = 1.0


@contextmanager
def open_own_run(ticket: JobTicket, names: Iterable[str], node: str) -> Iterator[RunDir]:
    """Yield a directory of this machine with records of the run; send what it has at the end, and remove it.

    Args:
        names: of the records to fetch.
        node: the name of this machine in the run.

    Raises:
        ElastaneError: the controller does not answer.
        BadInput: the directory cannot be written.
    """
    # Machines may have one home on a network disk, and each cleans up only after its own agents.
    run_dir = RunDir(find_home() / FOLDER / derive_node_name(socket.gethostname()) / ticket.agent, node)
    access = StoreAccess(
        ticket.url, f"/agents/{ticket.agent}", encode_credentials(ticket.key), ticket.certificate
    )
    with ExitStack() as held:
        try:
            make_home()
            held.callback(os.close, make_own_run_dir(run_dir))
            write_store_access(run_dir, access)
            store = RecordStore(access, timeout_s=FETCH_S)
            store.fetch(run_dir, names)
        except OSError as error:
            raise BadInput(
                f"this machine cannot write {run_dir.root}: {error.strerror}",
                means="its part of the run is written there",
                do="set ELASTANE_HOME to a directory on a disk of this machine",
            ) from error
        try:
            with ResultSender(store, run_dir):
                yield run_dir
        finally:
            if _send_last_records(run_dir):
                shutil.rmtree(run_dir.root, ignore_errors=True)


def check_fits_own_home(spec: JobSpec) -> None:
    """Check that a job can train on machines that share no directory."""
    if spec.contract != "elastane":
        raise BadInput(
            f"job {spec.name} has the contract of {spec.contract}, and its machines share no directory",
            means="its snapshots are where its script writes them, and would be lost with its machine",
            do="let it run in a pool of an engine with home=shared, or call elastane.join() in its script",
        )
    if spec.processes > 1:
        raise BadInput(
            f"job {spec.name} has workers of {spec.processes} processes, and its machines share no directory",
            means="such a run stays on one machine so far, and its records would be lost with that machine",
            do="let it run in a pool of an engine with home=shared, or submit it with one process per worker",
        )
    policy = parse_checkpoint_policy(spec.training.checkpoints)
    if (policy is not None or spec.training.origin) and not (policy and policy.url):
        raise BadInput(
            f"job {spec.name} names no place for its checkpoints, and its machines share no directory",
            means="each worker writes its part of a checkpoint there, so no checkpoint would be complete",
            do="submit it with --checkpoint-dir URL, or a directory that all machines share",
        )


def make_own_run_dir(run_dir: RunDir) -> int:
    """Make a run directory of an agent, and remove those beside it of which no process is left.

    An agent that was killed has left its own, with the keys of its run.

    Returns:
        A descriptor that tells others that a process is there, until it is closed.

    Raises:
        OSError: it cannot be written.
    """
    folder = run_dir.root.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in folder.iterdir():
        with suppress(OSError):
            if not left.name.startswith(".") and not is_any_process_present(RunDir(left)):
                shutil.rmtree(left)
    # The others see it only once its lock is held.
    new = folder / f".{run_dir.root.name}"
    shutil.rmtree(new, ignore_errors=True)
    (new / "logs").mkdir(parents=True)
    descriptor = hold_presence(RunDir(new))
    new.rename(run_dir.root)
    return descriptor


def _send_last_records(run_dir: RunDir) -> bool:
    """Send what the run has recorded after its coordinator has ended, if it was one of this machine.

    Returns:
        False: the controller did not take it.
    """
    give_up_s = time.monotonic() + GIVE_UP_S
    while True:
        try:
            _send_records(run_dir)
        except NoSuchRun:
            # It did not begin.
            return True
        except RequestRefused:
            # Another machine is in charge, and has all of it.
            return True
        except (ElastaneError, OSError):
            if time.monotonic() > give_up_s:
                return False
        else:
            return True
        time.sleep(AGAIN_S)


def _send_records(run_dir: RunDir) -> None:
    newest = find_newest_term(open_claims(run_dir, read_record(run_dir).spec).read())
    if newest is None or newest.endpoint is None or newest.endpoint.node != run_dir.node:
        return
    store = find_record_store(run_dir, timeout_s=FETCH_S)
    assert store is not None, "this agent has written the file"
    RecordSender(store, run_dir, newest.number, anew=False).send_new()
    with suppress(BadInput):
        attempt = read_attempt(run_dir)
        if attempt is not None and attempt.outcome is not None:
            # Nothing answers there any more.
            store.send([RecordPart(name=ENDPOINT, whole=True, end=True)], newest.number)
