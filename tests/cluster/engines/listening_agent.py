"""The command of agents in these tests: it tells the test what happens to it, and ends when the test says so.

It takes the words of ``elastane join -``, and a ticket ``HOST:PORT,ID,DEVICES`` from standard input. It needs
nothing beside Python, so that it starts quickly.
"""

import os
import select
import signal
import socket
import sys


def main() -> None:
    assert sys.argv[1:] == ["join", "-"], sys.argv
    wake, waker = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(waker)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    address, name, slots = sys.stdin.readline().strip().split(",")
    host, port = address.rsplit(":", 1)
    os.write(sys.stdout.fileno(), f"agent {name} begins\n".encode())
    with socket.create_connection((host, int(port))) as line:
        line.sendall(f"{name} {slots} {os.getpid()} {os.environ.get('TEST_SETUP', '-')}\n".encode())
        while True:
            ready, _, _ = select.select([line, wake], [], [])
            if wake in ready:
                for number in os.read(wake, 64):
                    line.sendall(f"{signal.Signals(number).name}\n".encode())
            if line in ready:
                # Without a code the test has ended.
                sys.exit(int(line.recv(64) or 0))


if __name__ == "__main__":
    main()
