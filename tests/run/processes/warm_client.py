"""The command in place of a program that ``warm_process.py`` forks; it imports only the standard library.

Arguments: the socket of the warm process, the name of the program, and its arguments. An agent starts it in
place of a coordinator or a fork server, a test in place of ``elastane``. The program gets the client's
descriptors. The client passes signals on and ends with the program; when the client is killed, the
program ends.
"""

import itertools
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress

DESCRIPTOR_OPTIONS = ("--fd", "--lifeline", "--streams")
PID_BYTES = 8
COMMANDS = ("elastane", "python")
"""Programs with the environment of this process."""


def main() -> None:
    path, program, *arguments = sys.argv[1:]
    is_command = program in COMMANDS
    inherited = [] if is_command else list(find_descriptors(arguments))
    request = {
        "program": program,
        "arguments": arguments,
        "client": os.getpid(),
        "folder": os.getcwd(),  # noqa: PTH109 - the import of pathlib takes long
        # The warm process does not know the object store and the home of this test.
        "environment": {
            name: value
            for name, value in os.environ.items()
            if is_command or name.startswith(("AWS_", "ELASTANE_"))
        },
    }
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2, *inherited])
    pid = int(connection.recv(PID_BYTES))

    def pass_on(number: int, _frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, pass_on)
    # An agent blocks notices until its process withstands them.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for descriptor in (0, 1, *inherited):
        os.close(descriptor)
    with suppress(ProcessLookupError):
        ended = os.pidfd_open(pid)
        select.select((ended,), (), ())
    if program == "python" and (code := int(connection.recv(64))) < 0:
        os.kill(os.getpid(), -code)
    elif program == "python":
        os._exit(code)
    # The program has sent its exit code unless it was killed.
    with suppress(BlockingIOError):
        if code := connection.recv(64, socket.MSG_DONTWAIT):
            os._exit(int(code))
    os.kill(os.getpid(), signal.SIGKILL)


def find_descriptors(arguments: list[str]) -> Iterator[int]:
    for option, value in itertools.pairwise(arguments):
        if option in DESCRIPTOR_OPTIONS:
            yield from map(int, value.split(","))


if __name__ == "__main__":
    main()
