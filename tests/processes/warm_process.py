"""The warm process: it imports torch once for the test session, and each run's fork server is forked from it.

Its argument is the path of a Unix socket. A client (``warm_client.py``) sends its command line and four
descriptors, and receives the process id of its server.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path

from elastane.runtime.fork_server import MODULES, ForkServerLoop

DESCRIPTORS = 4


def main() -> None:
    for module in MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    # This process does not need the exit codes of servers.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
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
                serve(connection, listener)


def serve(connection: socket.socket, listener: socket.socket) -> None:
    """Answer in a forked process, so that this process never has a file of a run open.

    Tests kill each process that has a file of the run open, and would end the whole session.
    """
    if os.fork():
        return
    listener.close()
    text, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, DESCRIPTORS)
    connection.sendall(str(os.getpid()).encode())
    connection.close()
    run_dir, environment = json.loads(text)
    os.environ.update(environment)
    become(Path(run_dir), *descriptors)


def become(run_dir: Path, requests: int, answers: int, log: int, lifeline: int) -> None:
    """Continue as ``python -m elastane.runtime.fork_server`` does once it has imported its modules."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for standard, descriptor in enumerate((requests, answers, log)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    ForkServerLoop(run_dir, lifeline).serve()
    os._exit(0)


if __name__ == "__main__":
    main()
