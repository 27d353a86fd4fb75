"""The command that an agent starts instead of a fork server; it imports only the standard library.

It passes its own descriptors to ``warm_process.py``, which forks a server, and it ends when that server ends.
When the agent kills this process, the server ends too, because the agent closes the server's standard input.
"""

import json
import os
import select
import signal
import socket
import sys


def main() -> None:
    path, _, run_dir, _, lifeline = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        # The forked server has the session's environment, which does not name the object store of this test.
        stores = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        socket.send_fds(connection, [json.dumps([run_dir, stores]).encode()], [0, 1, 2, int(lifeline)])
        pid = int(connection.recv(64))
    os.close(0)
    os.close(1)
    os.close(int(lifeline))
    try:
        ended = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select((ended,), (), ())
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
