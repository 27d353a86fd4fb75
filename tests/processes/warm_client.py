"""What an agent starts instead of a cold fork server; needs nothing but the standard library.

Passes its own descriptors on to ``warm_process.py`` and lives as long as the server it gets for them. Killed,
it takes the server with it: the agent closes the server's standard input.
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
        # Where an object store is, the forked server would not know: its environment is the session's.
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
