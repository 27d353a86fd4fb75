"""The checks of a machine before it takes part: one that does not fit is refused and costs nothing."""

import hashlib
import platform
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from elastane.api.durations import format_duration
from elastane.api.errors import BadInput
from elastane.api.memory import read_available_bytes
from elastane.api.rundir import RunDir
from elastane.api.spec import Pinned, RunRecord
from elastane.attempts.shipped_code import check_shipped_code
from elastane.claims.place import ClaimsUnavailable
from elastane.claims.urls import find_claims, open_claim_list

MOST_SKEW_S = 300.0
"""Times in events and checkpoints, and the expiry of tickets, bear so much."""
CLAIMS_S = 5.0
COMPARED = ("elastane", "torch", "python")
BYTES_PER_PARAMETER = 8
"""A parameter and its gradient in float32; the optimizer's state comes on top."""


def list_own_versions() -> dict[str, str]:
    """Return the versions on this machine that decide about the trained bytes."""
    return {
        "elastane": version("elastane"),
        "torch": version("torch"),
        "python": platform.python_version(),
    }


def check_machine(
    run_dir: RunDir, record: RunRecord, *, slots: int, run_time_s: float, own_time_s: float
) -> None:
    """Check that this machine fits a run.

    Args:
        run_dir: of the run.
        record: of the run.
        slots: the most workers on this machine.
        run_time_s: the present Unix time on the machine in charge.
        own_time_s: the present Unix time on this machine.

    Raises:
        BadInput: it does not fit.
    """
    check_clock(run_time_s, own_time_s)
    if record.spec.code:
        check_shipped_code(run_dir, record.spec.code)
    if record.pinned is not None:
        check_versions(record.pinned, list_own_versions())
        check_script_text(Path(record.spec.script), record.pinned)
        check_free_memory(record.pinned, slots, read_available_bytes())
    check_claim_list(find_claims(run_dir, record.spec))


def check_claim_list(url: str) -> None:
    """Check that this machine may use the claim list of the run, so that it can take charge.

    A list that is away may come back, and machines join meanwhile, so they are not refused.

    Raises:
        BadInput: it cannot be used from here: a token or a right is missing.
    """
    with suppress(ClaimsUnavailable):
        open_claim_list(url, wait_s=CLAIMS_S).read()


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


def check_versions(pinned: Pinned, own: dict[str, str]) -> None:
    """Check that this machine has the software of the run.

    Raises:
        BadInput: a version differs.
    """
    others = [
        f"{name} is {own[name]}, the run's is {pinned.versions[name]}"
        for name in COMPARED
        if name in pinned.versions and own[name] != pinned.versions[name]
    ]
    if others:
        raise BadInput(
            f"this machine has other software: {'; '.join(others)}",
            means="other versions may train other bytes, so the run would refuse its workers",
            do="install the versions of the run here",
        )


def check_script_text(script: Path, pinned: Pinned) -> None:
    """Check that the script on this machine is that of the run.

    Raises:
        BadInput: its text differs.
    """
    if script.is_file() and hashlib.sha256(script.read_bytes()).hexdigest() != pinned.script_digest:
        raise BadInput(
            f"{script} on this machine is another script than the run's",
            means="it may train other bytes, so the run would refuse its workers",
            do="copy the script of the run here, or start the run with --ship-code",
        )


def check_free_memory(pinned: Pinned, slots: int, available_bytes: int) -> None:
    """Check that the workers of this machine can hold the model and its gradients.

    Args:
        pinned: of the run.
        slots: the most workers on this machine.
        available_bytes: memory that is free here.

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
