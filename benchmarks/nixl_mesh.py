"""Measure how fast a worker gets payloads of a peer: over their connection, and with NIXL in its memory.

Two processes of this machine are two workers that share no memory. Worker 1 owns 256 MiB that its peer may
read, and worker 0 asks for all of it, again and again. With UCX's TCP both ways use the same network; with
all of UCX's ways the kernel copies from one process to the other. The ways alternate.
"""

import argparse
import os
import statistics
import sys
import time
from multiprocessing import get_context
from typing import TYPE_CHECKING

import numpy as np
from elastane.run.protocol.messages import AnyPeerMessage, State, Vote
from elastane.run.worker.links import payload_offers
from elastane.run.worker.links.frames import Payload
from elastane.run.worker.links.mesh import Mesh
from elastane.run.worker.links.nixl_agent import NixlAgent
from elastane.run.worker.links.payload_exchange import RemoteMemory

from machine import describe_commit
from text import format_table

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

payload_offers.COMPARED_PARTS = 0  # also in the processes that are spawned
SECRET = b"of the benchmark"
MIB = 1 << 20
PAYLOAD_BYTES = 256 * MIB
WAYS = {"the connection": None, "NIXL, TCP": {"UCX_TLS": "tcp"}, "NIXL, all": {}}
"""The variables of UCX in each way; None: without NIXL."""


class Worker:
    """One of two workers; worker 1 dials, and sends when it is asked."""

    def __init__(self, number: int, environment: dict[str, str] | None) -> None:
        self._number = number
        self.mesh = Mesh(number, SECRET, share_memory=False)
        self._arena = memoryview(np.ones(PAYLOAD_BYTES, np.uint8)).cast("B")  # type: ignore[arg-type]
        self.received = 0
        if environment is not None:
            os.environ.update(environment)
            self.mesh.remote_memory = RemoteMemory(NixlAgent(f"worker-{number}", reached=False), self._fail)
            self.mesh.remote_memory.lent.list_arenas = lambda: [self._arena]

    def poll(self, timeout_s: float) -> None:
        self.mesh.poll(timeout_s, self._receive, self._lose)

    def _receive(self, peer: int, message: AnyPeerMessage, payload: Payload) -> None:
        self.received += 1
        if isinstance(message, Vote) and self._number == 1:
            self.mesh.send(peer, State(generation=1, committed=0), [self._arena])
        elif len(payload) not in {0, PAYLOAD_BYTES}:
            raise RuntimeError("a payload of another size")

    def _lose(self, peer: int) -> None:
        if self._number == 0:  # which ends first
            self._fail(peer, "lost")

    def _fail(self, *what: object) -> None:
        raise RuntimeError(str(what))

    def ask(self) -> float:
        """Ask for a payload, and return the seconds until it is there."""
        began_s, before = time.perf_counter(), self.received
        self.mesh.send(1, Vote(generation=1, round=0, leaves=()))
        while self.received == before:
            self.poll(1.0)
        return time.perf_counter() - began_s


def serve(pipe: "Connection", port: int, environment: dict[str, str] | None) -> None:
    worker = Worker(1, environment)
    worker.mesh.dial(0, "127.0.0.1", port)
    while not pipe.poll():
        worker.poll(0.05)


def read(pipe: "Connection", environment: dict[str, str] | None, times: int) -> None:
    worker = Worker(0, environment)
    pipe.send(worker.mesh.port)
    while not worker.mesh.peers:
        worker.poll(0.1)
    worker.ask()  # connects, and takes memory for the first time
    pipe.send(statistics.median(PAYLOAD_BYTES / worker.ask() / 1e9 for _ in range(times)))


def measure(environment: dict[str, str] | None, times: int) -> float:
    """Return the GB/s of a payload, the median of several."""
    context = get_context("spawn")
    (own, reader_pipe), (end, server_pipe) = context.Pipe(), context.Pipe()
    reader = context.Process(target=read, args=(reader_pipe, environment, times), daemon=True)
    reader.start()
    server = context.Process(target=serve, args=(server_pipe, own.recv(), environment), daemon=True)
    server.start()
    speed: float = own.recv()
    end.send(None)
    for process in (reader, server):
        process.join()
    return speed


def describe(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5, help="payloads of each measurement")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each way")
    options = parser.parse_args()
    speeds: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(options.repeats):
        for way, environment in WAYS.items():
            speeds[way].append(measure(environment, options.times))
    tcp = speeds["the connection"]
    rows = [
        [way, describe(some), describe([own / other for own, other in zip(some, tcp, strict=True)])]
        for way, some in speeds.items()
    ]
    sys.stdout.write(f"Commit {describe_commit()}; payloads of {PAYLOAD_BYTES // MIB} MiB.\n\n")
    sys.stdout.write(format_table(["way", "GB/s", "of the connection beside it"], rows) + "\n")


if __name__ == "__main__":
    main()
