"""``elastane up`` and ``elastane down``: start and end the controller of this machine's cluster."""

import contextlib
import getpass
import os
import select
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from elastane.agent import process_identity
from elastane.api.controller_start import ControllerReady, ControllerSettings, ControllerStartFailure
from elastane.api.errors import BadInput, RunFailed
from elastane.api.run_as import RunAs, parse_run_as
from elastane.cli.command import AsJson, open_console, print_json
from elastane.cli.devices import count_devices
from elastane.client.context import (
    Context,
    StartedController,
    find_home,
    make_home,
    read_context,
    read_run_as,
    read_running,
    read_store_context,
    save_context,
    save_run_as,
    save_running,
    save_store_context,
)
from elastane.client.controller_lock import find_lock_holder
from elastane.client.permissions import OF_STRANGERS, restrict_permissions
from elastane.engines.local.user_isolation import PASSAGE

PORT = 7425
LAST_PORT = 65535
GONE_S = 20.0


def up(
    *,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen.")] = f"127.0.0.1:{PORT}",
    store: Annotated[
        str, typer.Option(metavar="URL", help="sqlite:///PATH or postgresql://...; by default in the home.")
    ] = "",
    devices: Annotated[
        int | None, typer.Option(min=1, help="Devices of this machine; by default its GPUs, else its cores.")
    ] = None,
    tls_cert: Annotated[str, typer.Option(metavar="FILE", help="Certificate chain, for HTTPS.")] = "",
    tls_key: Annotated[str, typer.Option(metavar="FILE", help="Its private key.")] = "",
    new_token: Annotated[
        bool, typer.Option("--new-token", help="Make another operator's token; the last one may be lost.")
    ] = False,
    run_as: Annotated[
        list[str] | None,
        typer.Option(
            "--run-as",
            metavar="[TEAM=]USER",
            help="Run the jobs of a team as this system user; without TEAM=, those of all other teams. Needs "
            "root. Give it once per team. It is kept for the next elastane up.",
            show_default=False,
        ),
    ] = None,
    no_run_as: Annotated[
        bool,
        typer.Option("--no-run-as", help="Run all jobs as the controller's user again.", show_default=False),
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Go on in the background.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start a controller: scheduler, API and the engine of this machine.

    Jobs continue without it, so it can be ended and started again at any time.

    Without --run-as, jobs run as the user who starts the controller. A job can
    then read the files of that user, including the operator's token. If teams
    do not trust each other, name system users:

      $ sudo ELASTANE_HOME=/var/lib/elastane elastane up -d --run-as vision=el-vision --run-as el-jobs
    """
    console = open_console(as_json=as_json)
    _check_alone()
    host, port = _parse_address(listen)
    count, kind = count_devices()
    wish = ControllerSettings(
        home=str(find_home()),
        store=store or f"sqlite:///{find_home() / 'controller.db'}",
        host=host,
        port=port,
        certificate=os.path.abspath(tls_cert) if tls_cert else "",  # noqa: PTH100 - links stay as they are
        key=os.path.abspath(tls_key) if tls_key else "",  # noqa: PTH100
        devices=devices or count,
        device=kind,
        user=getpass.getuser(),
        new_token=new_token,
        run_as=_choose_users(run_as, no_run_as=no_run_as),
    )
    log = find_home() / "controller.log"
    with _explain_write_errors("nothing was started"):
        make_home()
        secrets = (log, *find_home().glob("cluster*.json"))
        # The users of jobs must be able to pass through the home to their run directories.
        others = OF_STRANGERS & ~stat.S_IXOTH if wish.run_as.isolates or _is_shared() else OF_STRANGERS
        closed = [str(find_home())] if restrict_permissions(find_home(), others) else []
        closed += [str(path) for path in secrets if restrict_permissions(path)]
        process, ready = _start_controller(wish, log, detach=detach)
    ready = msgspec.structs.replace(ready, narrowed=(*closed, *ready.narrowed))
    again = "; its operator's token is lost with it: elastane up --new-token" if ready.token else ""
    try:
        with _explain_write_errors(
            f"the controller was ended again, because no command would find it{again}"
        ):
            _record_controller(wish, process, ready)
    except BaseException:
        _end_process(process)
        raise
    if as_json:
        print_json(ready)
    console.print(f"controller  {ready.url}", markup=False)
    console.print(f"store       {ready.store}", markup=False)
    console.print(f"devices     {wish.devices} x {wish.device}, pool local", markup=False)
    console.print(f"jobs        {_format_users(wish.run_as, wish.user)}", markup=False)
    if ready.token:
        console.print(f"token       {ready.token}", markup=False)
        console.print(
            f"            an operator's, told only now; kept in {find_home() / 'cluster.json'}", markup=False
        )
    if ready.narrowed:
        console.print(f"rights      taken from others: {', '.join(ready.narrowed)}", markup=False)
    if detach:
        console.print(f"it goes on as process {process.pid}; its log is {log}; end it with: elastane down")
        return
    console.print("Ctrl-C ends it; jobs go on without it")
    raise typer.Exit(_wait_for_end(process))


def _choose_users(words: list[str] | None, *, no_run_as: bool) -> RunAs:
    """Return the system users that jobs are to run as.

    Raises:
        BadInput: the options contradict each other, or the saved users cannot be read.
    """
    if words and no_run_as:
        raise BadInput("--run-as and --no-run-as contradict each other", do="give one of them")
    if words:
        return parse_run_as(words)
    return RunAs() if no_run_as else read_run_as()


def _is_shared() -> bool:
    """Return whether an earlier controller with --run-as may have left run directories of other users."""
    try:
        return stat.S_IMODE((find_home() / "runs").stat().st_mode) == PASSAGE
    except OSError:
        return False


def _format_users(run_as: RunAs, own: str) -> str:
    """Return the users of jobs as text: ``run as el-vision (team vision), el-jobs (other teams)``."""
    if not run_as.isolates:
        return f"run as {own}, who starts the controller: they can read its token; see --run-as"
    users = [f"{user} (team {team})" for team, user in sorted(run_as.teams.items())]
    users += [f"{run_as.default} (other teams)" if users else run_as.default] if run_as.default else []
    return f"run as {', '.join(users)}"


def down(as_json: AsJson = False) -> None:
    """End the controller of this machine; jobs continue without it."""
    pid, process = _find_controller()
    if process is None:
        was = f"the controller that was process {pid} has ended already"
        raise BadInput(was if pid else "no controller was started here", do="elastane up")
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        # Its address is free again only when its last thread has ended.
        if not select.select((process,), (), (), GONE_S)[0]:
            raise RunFailed(f"process {pid} has not ended within {GONE_S:g} s", do=f"kill -9 {pid}")
    finally:
        os.close(process)
    if as_json:
        print_json({"pid": pid, "ended": True})
        return
    open_console().print("the controller has ended; jobs go on training", markup=False)


def _record_controller(
    wish: ControllerSettings, process: "subprocess.Popen[bytes]", ready: ControllerReady
) -> None:
    """Save the process of the controller and its address and token, so that commands find it.

    Raises:
        OSError: the home is not writable.
    """
    save_run_as(wish.run_as)
    before, kept = read_running(), read_context()
    if ready.token:
        found = Context(url=ready.url, token=ready.token, certificate=wish.certificate)
        save_context(found)
        save_store_context(ready.store, found)
    elif kept is None or (before is not None and kept.url == before.url):
        # The saved cluster is this machine's controller, perhaps at another address; a login elsewhere stays.
        again = read_store_context(ready.store) or kept
        if again is not None:
            save_context(msgspec.structs.replace(again, url=ready.url, certificate=wish.certificate))
    # Save this last: the address of the previous controller is needed above, also when this is repeated.
    save_running(
        StartedController(
            url=ready.url, pid=process.pid, started=process_identity.read_start_time(process.pid) or 0
        )
    )


@contextlib.contextmanager
def _explain_write_errors(means: str) -> Iterator[None]:
    """Turn a failed write in the home into an error in words.

    Args:
        means: the consequence, for the error.

    Raises:
        RunFailed: a write failed.
    """
    try:
        yield
    except OSError as error:
        raise RunFailed(
            f"cannot write in {find_home()}: {error.strerror or error}",
            means=means,
            do="free some space there, or make it writable, then start it again",
        ) from error


def _end_process(process: "subprocess.Popen[bytes]") -> None:
    """End a controller that was just started, and wait until its process is gone."""
    process.terminate()
    try:
        process.wait(GONE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _check_alone() -> None:
    """Check that no controller of this home is running.

    Raises:
        BadInput: a controller is running.
    """
    pid, process = _find_controller()
    if process is None:
        return
    os.close(process)
    found = _read_recorded()
    at = f"{found.url}, " if found is not None and found.pid == pid else ""
    raise BadInput(
        f"a controller already runs here ({at}process {pid})",
        means="this machine's devices are given out by one; nothing was started",
        do="use that one: elastane top; or end it first: elastane down",
    )


def _find_controller() -> tuple[int, int | None]:
    """Return the process id and a pidfd of the controller of this home.

    The lock decides, because the saved record may be missing or about an earlier controller.

    Returns:
        The process id is 0 if no controller is known. The pidfd is None if the controller has ended.
    """
    pid = find_lock_holder(find_home())
    start = None if pid is None else process_identity.read_start_time(pid)
    if pid is not None and start is not None:
        process = process_identity.open_process(pid, start)
        # Check again: the pidfd now protects the process id against reuse.
        if process is not None and find_lock_holder(find_home()) == pid:
            return pid, process
        if process is not None:
            os.close(process)
    found = _read_recorded()
    return (
        (0, None) if found is None else (found.pid, process_identity.open_process(found.pid, found.started))
    )


def _read_recorded() -> StartedController | None:
    """Return the saved record of the last controller; None if there is none that can be read."""
    try:
        return read_running()
    except BadInput:
        return None


def _start_controller(
    wish: ControllerSettings, log: Path, *, detach: bool
) -> "tuple[subprocess.Popen[bytes], ControllerReady]":
    """Start a controller, wait until it listens, and return its process and its answer.

    Args:
        wish: the settings of the controller.
        log: file for its output.
        detach: let the controller outlive this command.

    Raises:
        BadInput: the controller refused its settings.
        RunFailed: the controller ended before it listened.
    """
    reading, writing = os.pipe()
    try:
        with os.fdopen(os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "ab") as stream:
            process = subprocess.Popen(  # noqa: S603 - our own module
                [
                    *(sys.executable, "-P", "-m", "elastane.controller"),
                    f"--ready-fd={writing}",
                    *([] if detach else [f"--with={os.getpid()}"]),
                ],
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=stream,
                start_new_session=detach,
                pass_fds=(writing,),
            )
    finally:
        os.close(writing)
    assert process.stdin is not None
    # If the controller has already ended, the code below notices.
    with contextlib.suppress(BrokenPipeError), process.stdin as asked:
        asked.write(msgspec.json.encode(wish))
    try:
        with os.fdopen(reading, "rb") as told:
            line = told.readline()
    except BaseException:
        # After Ctrl-C, for example, no command would find the controller.
        _end_process(process)
        raise
    with contextlib.suppress(msgspec.ValidationError):
        if line:
            return process, msgspec.json.decode(line, type=ControllerReady)
    code = process.wait()
    kind = BadInput if code == BadInput.exit_code else RunFailed
    if line:
        why = msgspec.json.decode(line, type=ControllerStartFailure)
        raise kind(f"the controller did not start: {why.what}", means=why.means, do=why.do)
    raise kind(f"the controller did not start: it ended with {code}", do=f"read {log}")


def _wait_for_end(process: "subprocess.Popen[bytes]") -> int:
    """Forward signals to the controller until it ends, and return its exit code."""

    def forward_signals(number: int, _: object) -> None:
        process.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, forward_signals)
    return process.wait()


def _parse_address(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > LAST_PORT:
        raise BadInput(f"--listen {listen} is not HOST:PORT", do=f"write 127.0.0.1:{PORT}")
    return host.strip("[]"), int(port)
