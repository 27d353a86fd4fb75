"""The checks of a machine before it takes part: one that does not fit is refused and costs nothing."""

import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from elastane.common.durations import format_duration
from elastane.common.errors import BadInput, StorageError
from elastane.common.memory import read_available_bytes
from elastane.run.attempts.software import hash_script, list_own_versions
from elastane.run.checkpoints.storage.urls import open_storage
from elastane.run.machines.claims.claim_list import ClaimList
from elastane.run.machines.claims.place import ClaimsUnavailable
from elastane.run.machines.claims.urls import open_claims
from elastane.run.machines.joining.shipped_code import check_shipped_code
from elastane.run.machines.tickets.shared_places import find_local_directory
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import Pinned, RunRecord, RunSoftware

MOST_SKEW_S = 300.0
"""Times in events and checkpoints, and the expiry of tickets, bear so much."""
CLAIMS_S = 5.0
BYTES_PER_PARAMETER = 8
"""A parameter and its gradient in float32; the optimizer's state comes on top."""


def check_machine(
    run_dir: RunDir, record: RunRecord, *, slots: int, run_time_s: float, own_time_s: float
) -> None:
    """Check that this machine fits a run.

    Args:
        run_time_s: the present Unix time on the machine in charge.
        own_time_s: the present Unix time on this machine.
    """
    check_clock(run_time_s, own_time_s)
    if record.spec.code:
        check_shipped_code(run_dir, record.spec.code)
    software, pinned = record.software, record.pinned
    if software is not None:
        check_software(software, list_own_versions(), platform.machine())
        digest = software.script_digest if pinned is None else pinned.script_digest
        check_script_text(Path(record.spec.script), digest)
    if pinned is not None:
        check_free_memory(pinned, slots, read_available_bytes())
    if record.spec.checkpoints is not None:
        check_checkpoint_storage(record.spec.checkpoints.url)
    check_claim_list(open_claims(run_dir, record.spec, wait_s=CLAIMS_S))


def check_claim_list(claims: ClaimList) -> None:
    """Check that this machine can claim in the claim list of the run, and so take charge.

    A list that is away may come back, and machines join meanwhile, so they are not refused.

    Raises:
        BadInput: it cannot be used from here: a token or a right is missing.
    """
    with suppress(ClaimsUnavailable):
        claims.prove_writable()


def check_checkpoint_storage(url: str) -> None:
    """Check that this machine reaches the storage of the run's checkpoints, if it is at a URL.

    Raises:
        BadInput: it cannot be listed from here.
    """
    if find_local_directory(url) is not None:
        return
    try:
        open_storage(url).list_directories()
    except StorageError as error:
        raise BadInput(
            f"this machine does not reach the checkpoints of the run: {error.what}",
            means="each worker writes its part of a checkpoint there, so no checkpoint would be complete",
            do=error.do or "check the network and the credentials for the storage on this machine",
        ) from error


def check_clock(run_time_s: float, own_time_s: float) -> None:
    """Check that the clock of this machine agrees with that of the run.

    Raises:
        BadInput: it is more than `MOST_SKEW_S` off.
    """
    skew_s = own_time_s - run_time_s
    if abs(skew_s) > MOST_SKEW_S:
        raise BadInput(
            f"the clock of this machine is {format_duration(abs(skew_s))} "
            f"{'ahead of' if skew_s > 0 else 'behind'} that of the run",
            means="the times of its events and checkpoints would be wrong, and the expiry of tickets too",
            do="synchronise the clocks, for example with chrony or systemd-timesyncd",
        )


def check_software(software: RunSoftware, own: Mapping[str, str], architecture: str) -> None:
    """Check that this machine has the software and the kind of CPU with which the run began."""
    if architecture != software.architecture:
        raise BadInput(
            f"the CPU of this machine is {architecture}, those of the run are {software.architecture}",
            means="it computes other bits, so the run would refuse its workers",
            do="use a machine of the same architecture",
        )
    others = [
        f"{name} is {own.get(name, 'missing')}, the run's is {version}"
        for name, version in software.versions.items()
        if own.get(name) != version
    ]
    if others:
        raise BadInput(
            f"this machine has other software: {'; '.join(others)}",
            means="other versions may train other bytes, so the run would refuse its workers",
            do="install the versions of the run here",
        )


def check_script_text(script: Path, digest: str) -> None:
    """Check that the script on this machine is that of the run.

    Args:
        digest: of the run's script; empty: unknown.
    """
    if digest and script.is_file() and hash_script(script) != digest:
        raise BadInput(
            f"{script} on this machine is another script than the run's",
            means="it may train other bytes, so the run would refuse its workers",
            do="copy the script of the run here, or start the run with --ship-code",
        )


def check_free_memory(pinned: Pinned, slots: int, available_bytes: int) -> None:
    """Check that the workers of this machine can hold the model and its gradients.

    Raises:
        BadInput: even without the state of the optimizer they cannot.
    """
    needed_bytes = slots * BYTES_PER_PARAMETER * pinned.parameters
    if needed_bytes > available_bytes:
        raise BadInput(
            f"this machine has {available_bytes / 2**30:.1f} GiB of free memory, and {slots} workers need at "
            f"least {needed_bytes / 2**30:.1f} GiB for {pinned.parameters:,} parameters and their gradients",
            means="its workers would be killed for memory, and each death costs the others time",
            do="--slots N, with fewer workers on this machine",
        )
