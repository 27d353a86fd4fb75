"""The warm process: it imports torch and Elastane once for the test session and forks programs.

Its argument is the path of a Unix socket. A client (``warm_client.py``) sends the arguments of a program and
its descriptors, and receives the process id of the program and its exit code.
"""

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path

from elastane.run.agent import agent
from elastane.run.agent.processes import Commands
from elastane.run.scripts.agent import rank_processes
from elastane.run.worker.finished.environment import find_owners_of_modules
from elastane.run.worker.fork_server import MODULES

PROGRAMS = {
    "coordinator": "elastane.run.coordinator.__main__",
    "fork-server": "elastane.run.worker.fork_server",
    "script-server": "elastane.run.scripts.processes.script_server",
    "elastane": "elastane.cli.main",
    "python": "tests.run.processes.warm_python",
}
COMMANDS = ("elastane", "python")
FORK_SERVERS = ("fork-server", "script-server")
ALSO_IMPORTED = (
    "elastane.run.attempts.results",
    "elastane.run.attempts.supervision",
    "elastane.cli.runs.watcher",
    "elastane.cluster.controller.loop",
    "elastane.cluster.controller.rest.job_bodies",
    "elastane.cluster.engines.foreground",
    "elastane.run.observability.facts",
    "elastane.cluster.scheduler.run_explanations",
    "torch._dynamo",
    "torch.distributed.checkpoint",
)
"""Modules that ``elastane run`` imports later, and what only some scripts and ends of runs need."""
DESCRIPTOR_OPTIONS = ("--fd", "--lifeline", "--streams")
MOST_DESCRIPTORS = 8
MOST_BYTES = 1 << 20


def main() -> None:
    # As the fork server does before it imports NumPy.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    # The folder of the tests.
    sys.path.append(str(Path(__file__).parents[3]))
    for module in (*MODULES, *PROGRAMS.values(), *ALSO_IMPORTED):
        importlib.import_module(module)
    # Each run asks for it at its end.
    find_owners_of_modules()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, reap_programs)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen()
        while True:
            readable, _, _ = select.select((0, listener), (), ())
            if 0 in readable:
                # The test session is over.
                return
            connection, _ = listener.accept()
            with connection:
                # Peek, because this process must not receive the descriptors.
                text = connection.recv(MOST_BYTES, socket.MSG_PEEK)
                request = json.loads(text or "{}")
                if request.get("program") == "import":
                    import_more(request["arguments"])
                    connection.sendall(b"imported")
                elif request:
                    serve(connection, listener)


def reap_programs(_number: int, _frame: object) -> None:
    """Reap the programs that have ended, so that their CPU time counts as that of this process."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def import_more(modules: list[str]) -> None:
    """Import modules for the programs that are forked later, as far as they are installed."""
    for module in modules:
        with suppress(ImportError):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()


def serve(connection: socket.socket, listener: socket.socket) -> None:
    """Answer in a forked process, so that this process never has a file of a run open.

    Tests kill each process that has a file of the run open, and would end the whole session.
    """
    if os.fork():
        return
    listener.close()
    text, descriptors, _, _ = socket.recv_fds(connection, MOST_BYTES, MOST_DESCRIPTORS)
    request = json.loads(text)
    if request["program"] == "python":
        wait_for_copy(connection)
    enter_namespaces(request["client"])
    connection.sendall(f"{os.getpid():08}".encode())
    os.chdir(request["folder"])
    if request["program"] in COMMANDS:
        os.environ.clear()
    if request["program"] == "elastane":
        client = (sys.executable, "-S", "-E", str(Path(__file__).with_name("warm_client.py")), sys.argv[1])
        agent.Commands = lambda: Commands((*client, "coordinator"), (*client, "fork-server"))
        rank_processes.COMMAND = (*client, "script-server")
    os.environ.update(request["environment"])
    if request["program"] in FORK_SERVERS:
        if (seed := os.environ.get("ELASTANE_TEST_LAGGARD")) is not None:
            importlib.import_module("tests.run.laggard").install(int(seed))
        # Workers would inherit the connection.
        connection.close()
        code = run_program(request["program"], request["arguments"], descriptors)
        os._exit(code)
    end_with(request["client"])
    code = run_program(request["program"], request["arguments"], descriptors)
    if request["program"] != "python":
        connection.sendall(str(code).encode())
    os._exit(code)


def enter_namespaces(client: int) -> None:
    """Move this process to the machine of the client, if tests gave that one a network of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    # The owner of the user namespace may enter the network.
    for kind in ("user", "net"):
        theirs = Path(f"/proc/{client}/ns/{kind}")
        if theirs.readlink() != Path(f"/proc/self/ns/{kind}").readlink():
            with theirs.open() as namespace:
                if libc.setns(namespace.fileno(), 0):
                    raise OSError(ctypes.get_errno(), f"cannot enter {theirs}")


def wait_for_copy(connection: socket.socket) -> None:
    """Go on in a forked process; this one reports its exit code, however it ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)


def end_with(client: int) -> None:
    """End this process when the client is killed; a fork server ends when the agent closes its input."""
    try:
        ended = os.pidfd_open(client)
    except ProcessLookupError:
        os._exit(1)

    def watch() -> None:
        select.select((ended,), (), ())
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def run_program(program: str, arguments: list[str], descriptors: list[int]) -> int:
    """Run a program as ``python -m`` does once it has imported its modules, and return the exit code."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.argv = [program, *replace_descriptors(arguments, descriptors[3:])]
    try:
        sys.modules[PROGRAMS[program]].main()
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:  # noqa: BLE001 - the process ends here
        traceback.print_exc()
        return 1
    else:
        return 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def replace_descriptors(arguments: list[str], descriptors: list[int]) -> list[str]:
    """Return the arguments with the numbers that the received descriptors have in this process."""
    received = iter(descriptors)
    for place, option in enumerate(arguments[:-1] if descriptors else ()):
        if option in DESCRIPTOR_OPTIONS:
            count = len(arguments[place + 1].split(","))
            arguments[place + 1] = ",".join(str(next(received)) for _ in range(count))
    return arguments


if __name__ == "__main__":
    main()
