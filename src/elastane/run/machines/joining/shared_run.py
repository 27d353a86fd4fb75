"""Joining a run in a directory that this machine shares: checks, the name of this machine, and its part."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elastane.common.errors import BadInput, NoSuchRun
from elastane.run.connections.coordinator_request import ask_coordinator
from elastane.run.connections.endpoint import read_endpoint, read_secret
from elastane.run.machines.joining.join_checks import check_machine
from elastane.run.machines.joining.participation import JoinedMachine, take_part
from elastane.run.machines.visits.visits import check_shared_places
from elastane.run.nouns.connection_limits import check_worker_limit
from elastane.run.nouns.control import Answer, AskStatus, RunOver
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunRecord

MACHINES_S = 10.0
"""How long a run may take to name a machine of it that answers."""
LOOK_S = 0.1


def join_shared_run(machine: JoinedMachine, record: RunRecord, *, is_admitted: bool) -> tuple[RunOver, bool]:
    """Take part in a run to its end; see `take_part`.

    Args:
        machine: this machine, with its own name.
        record: of the run.
        is_admitted: the machine has proven already that it shares the directories of the run.

    Raises:
        BadInput: this machine does not fit the run, or another one has its name.
        NoSuchRun: the run is not live.
        RunFailed: its processes cannot be started here.
    """
    shared = machine.shared
    with _hold_name(machine.run_dir):
        answer = _ask_for_machines(shared)
        if not is_admitted:
            nodes = tuple(node for node in answer.nodes if node.port)
            check_shared_places(shared, nodes, read_endpoint(shared), read_secret(shared))
        check_machine(shared, record, slots=machine.slots, run_time_s=answer.time_s, own_time_s=time.time())
        what = f"takes part in the run {record.spec.name} with up to {machine.slots} workers"
        machine.say(f"{machine.run_dir.node} {what}")
        if record.spec.directory:
            os.chdir(record.spec.directory)
        return take_part(machine, record)


def check_joinable(run_dir: RunDir, record: RunRecord) -> None:
    """Check that this machine can take part.

    Raises:
        NoSuchRun: the run is not running.
        BadInput: it takes no other machines, its script is not here, or the limit of descriptors is too low.
    """
    spec = record.spec
    if spec.contract is not None or not spec.listen:
        raise BadInput(
            f"the run {spec.name} takes no other machines",
            means="an unmodified script trains on one machine"
            if spec.contract is not None
            else "it was started without --listen, so nothing outside its machine reaches it",
            do="start it with elastane run --listen ADDRESS",
        )
    check_worker_limit(spec.least_ranks)
    if not run_dir.endpoint.exists():
        raise NoSuchRun(
            f"the run {spec.name} is not running",
            means=f"it has no coordinator: {run_dir.endpoint.name} is not in {run_dir.root}",
            do="start or resume it first: elastane run --listen ADDRESS, on one machine",
        )
    if spec.directory and not Path(spec.directory).is_dir():
        raise BadInput(
            f"the working directory of the run is not on this machine: {spec.directory}",
            means="every machine runs the same script, in the same directory",
            do="start the run with --ship-code, or keep the directory on a shared file system",
        )
    if not Path(spec.script).is_file():
        raise BadInput(
            f"the script of the run is not on this machine: {spec.script}",
            means="every machine runs the same script, from the same path",
            do="keep the script on a file system that all machines share, or copy it to the same path",
        )


def _ask_for_machines(run_dir: RunDir) -> Answer:
    """Return the status of the run once it names a machine that answers.

    Raises:
        NoSuchRun: the run is not live.
    """
    give_up = time.monotonic() + MACHINES_S
    while True:
        answer = ask_coordinator(run_dir, AskStatus())
        if not answer.ok:
            raise BadInput(answer.why or "the run refused without a reason")
        # A new coordinator may not have heard any agent yet.
        if any(node.port for node in answer.nodes) or time.monotonic() > give_up:
            return answer
        time.sleep(LOOK_S)


@contextmanager
def _hold_name(run_dir: RunDir) -> Iterator[None]:
    """Keep other agents from taking part under the same name for as long as the context lasts.

    Raises:
        BadInput: one takes part, or the run directory cannot be written.
    """
    path = run_dir.node_files.lock
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise BadInput(
            f"cannot write {path}: {error.strerror}",
            means="workers on this machine write logs and checkpoints into the directory of the run",
            do="join as the user of the run, on a file system that this machine can write",
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise BadInput(
            f"a machine named {run_dir.node} takes part already",
            means="two agents of one name would start workers under the same numbers",
            do="--name NODE, with another name",
        ) from None
    try:
        yield
    finally:
        os.close(lock)
