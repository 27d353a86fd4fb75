"""A stranger on the network: a process that connects to the ports of a run, or to those of a bystander.

It proves nothing on its connections: it sends a few bytes on each, holds the newest and closes the others.
"""

import argparse
import contextlib
import itertools
import os
import resource
import socket
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

GARBAGE = os.urandom(64)
MOST_DESCRIPTORS = 16384


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ports", type=int, nargs="*", default=[], help="connect to these")
    parser.add_argument(
        "--rate", type=float, default=0.0, help="connections a second; 0: as many as possible"
    )
    parser.add_argument("--held", type=int, default=256, help="connections to hold on each port")
    parser.add_argument("--count", type=Path, help="count the connections in this file")
    parser.add_argument("--listen", action="store_true", help="be the bystander: print a port and accept")
    options = parser.parse_args()
    if options.listen:
        accept_and_close()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, MOST_DESCRIPTORS), most))
    connect(options.ports, options.rate, options.held, options.count)


def connect(ports: Sequence[int], rate: float, held: int, count: Path) -> None:
    """Connect to the ports in turns until this process is killed; count the established connections."""
    connections: deque[socket.socket] = deque()
    counter = os.open(count, os.O_WRONLY | os.O_CREAT)
    begin_s = time.monotonic()
    established = 0
    for number in itertools.count():
        connection = socket.socket()
        connection.settimeout(1.0)
        connections.append(connection)
        # The port is full, or the run has ended.
        with contextlib.suppress(OSError):
            connection.connect(("127.0.0.1", ports[number % len(ports)]))
            established += 1
            connection.send(GARBAGE)
        if len(connections) > held * len(ports):
            connections.popleft().close()
        if number % 10 == 0 or rate:
            os.pwrite(counter, b"%12d" % established, 0)  # in place: a reader finds a whole number
        if rate:
            time.sleep(max(0.0, begin_s + (number + 1) / rate - time.monotonic()))


def accept_and_close() -> NoReturn:
    """Print a port, accept its connections and close them, until this process is killed."""
    server = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(server.getsockname()[1], flush=True)
    while True:
        connection, _ = server.accept()
        with contextlib.suppress(OSError):
            connection.recv(64)
        connection.close()


if __name__ == "__main__":
    main()
