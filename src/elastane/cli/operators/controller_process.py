"""The process of this machine's controller: start, record, find and end it."""

import contextlib
import os
import subprocess
from collections.abc import Iterator

import msgspec

from elastane.cluster.client.context import StartedController, read_running, save_run_as, save_running
from elastane.cluster.client.controller_lock import find_lock_holder
from elastane.cluster.nouns.controller import ControllerReady, ControllerSettings
from elastane.common.connections.controller_context import (
    Context,
    read_context,
    read_store_context,
    save_context,
    save_store_context,
)
from elastane.common.errors import BadInput, RunFailed
from elastane.common.home import find_home
from elastane.common.process_identity import open_process, read_start_time


def check_no_controller_runs() -> None:
    """Check that no controller of this home is running."""
    pid, process = find_controller()
    if process is None:
        return
    os.close(process)
    found = _read_last_record()
    at = f"{found.url}, " if found is not None and found.pid == pid else ""
    raise BadInput(
        f"a controller already runs here ({at}process {pid})",
        means="only one controller may assign the devices of this machine; nothing was started",
        do="use that controller (elastane top), or end it first (elastane down)",
    )


def find_controller() -> tuple[int, int | None]:
    """Return the process id and a pidfd of the controller of this home.

    The lock decides, because the saved record may be missing or about an earlier controller.

    Returns:
        The process id is 0 if no controller is known. The pidfd is None if the controller has ended.
    """
    pid = find_lock_holder(find_home())
    start = None if pid is None else read_start_time(pid)
    if pid is not None and start is not None:
        process = open_process(pid, start)
        # Check again: the pidfd now protects the process id against reuse.
        if process is not None and find_lock_holder(find_home()) == pid:
            return pid, process
        if process is not None:
            os.close(process)
    found = _read_last_record()
    return (0, None) if found is None else (found.pid, open_process(found.pid, found.started))


def _read_last_record() -> StartedController | None:
    """Return the saved record of the last controller; None if there is none that can be read."""
    try:
        return read_running()
    except BadInput:
        return None


def record_controller(
    settings: ControllerSettings, process: "subprocess.Popen[bytes]", ready: ControllerReady
) -> None:
    """Save the process of the controller and its address and token, so that commands find it.

    Raises:
        OSError: the home is not writable.
    """
    save_run_as(settings.run_as)
    before, kept = read_running(), read_context()
    if ready.token:
        found = Context(url=ready.url, token=ready.token, certificate=settings.certificate)
        save_context(found)
        save_store_context(ready.store, found)
    elif kept is None or (before is not None and kept.url == before.url):
        # The saved cluster is this machine's controller, perhaps at another address; a login elsewhere stays.
        again = read_store_context(ready.store) or kept
        if again is not None:
            save_context(msgspec.structs.replace(again, url=ready.url, certificate=settings.certificate))
    # Save this last: the address of the previous controller is needed above, also when this is repeated.
    save_running(StartedController(url=ready.url, pid=process.pid, started=read_start_time(process.pid) or 0))


@contextlib.contextmanager
def explain_write_errors(means: str) -> Iterator[None]:
    """Turn a failed write in the home into an error in words; ``means`` is the consequence."""
    try:
        yield
    except OSError as error:
        raise RunFailed(
            f"cannot write in {find_home()}: {error.strerror or error}",
            means=means,
            do="free some space there, or make it writable, then start it again",
        ) from error
