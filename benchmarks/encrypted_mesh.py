"""Measure what the encryption of connections between machines costs (``elastane run --encrypt``).

Two processes of this machine are two workers at the addresses of different machines. Throughput: one
connection carries payloads in one direction. Step: as in a step on two machines, each worker computes, then
sends a half of the gradients and, once it has received the other half, a half of the new parameters. The
plain and the encrypted measurements alternate.
"""

import argparse
import statistics
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from elastane.run.connections.run_certificate import create_certificate
from elastane.run.nouns.machine_address import MachineAddress
from elastane.run.nouns.rundir import RunDir
from elastane.run.protocol.messages import AnyPeerMessage, State, Vote
from elastane.run.worker.links.encryption import load_encryption
from elastane.run.worker.links.frames import Payload
from elastane.run.worker.links.mesh import Mesh

from machine import describe_commit
from text import format_table

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

HOSTS = ("127.0.0.2", "127.0.0.1")
SECRET = b"of the benchmark"
PAYLOAD_BYTES = 16 << 20
CONNECT_S = 10.0
MIB = 1 << 20


class Worker:
    """One of two workers.

    Args:
        number: 0 or 1; worker 1 dials.
        folder: the directory with the certificate; None: the connection is plain.
    """

    def __init__(self, number: int, folder: Path | None) -> None:
        encryption = None if folder is None else load_encryption(RunDir(folder))
        self.mesh = Mesh(
            number, SECRET, MachineAddress(HOSTS[number]), share_memory=False, encryption=encryption
        )
        self._peer = 1 - number
        self._received = 0

    def connect(self, port: int) -> None:
        self.mesh.dial(self._peer, HOSTS[self._peer], port)

    def send(self, payload: memoryview) -> None:
        message = State(generation=1, committed=0, values=(), states=())
        self.mesh.send(self._peer, message, [payload])

    def acknowledge(self) -> None:
        self.mesh.send(self._peer, Vote(generation=1, round=0, leaves=()))

    def wait_for(self, messages: int) -> None:
        """Drive the connection until this many more messages have arrived."""
        while self._received < messages:
            self.mesh.poll(CONNECT_S, self._receive, self._fail)
        self._received -= messages

    def _receive(self, _peer: int, _message: AnyPeerMessage, _payload: Payload) -> None:
        self._received += 1

    def _fail(self, peer: int) -> None:
        raise RuntimeError(f"worker {peer} is lost")

    def stream(self, total_bytes: int) -> float:
        """Send payloads from worker 1 to worker 0; return the seconds until all have arrived."""
        payloads = total_bytes // PAYLOAD_BYTES
        began_s = time.perf_counter()
        if self._peer == 0:
            for _ in range(payloads):
                self.send(memoryview(bytearray(PAYLOAD_BYTES)))
            self.wait_for(1)
        else:
            self.wait_for(payloads)
            self.acknowledge()
            self.mesh.poll(0, self._receive, self._fail)
        return time.perf_counter() - began_s

    def step(self, width: int, repeats: int) -> float:
        """Make steps of a model with ``width**2`` parameters; return the seconds of one, the median."""
        weight, inputs = torch.randn(width, width), torch.randn(8, width)
        half = memoryview(bytearray(2 * width * width))
        seconds = []
        for _ in range(repeats + 1):
            began_s = time.perf_counter()
            # Forward and backward pass of several microbatches.
            for _ in range(4):
                outputs = inputs @ weight
                outputs @ weight.T
                inputs.T @ outputs
            for _ in range(2):
                self.send(half)
                self.wait_for(1)
            seconds.append(time.perf_counter() - began_s)
        return statistics.median(seconds[1:])


def measure_worker(pipe: "Connection", number: int, folder: Path | None, options: argparse.Namespace) -> None:
    """Send ``(seconds of the stream, seconds of a step)`` through the pipe."""
    torch.set_num_threads(1)
    worker = Worker(number, folder)
    pipe.send(worker.mesh.port)
    port = pipe.recv()
    if number == 1:
        worker.connect(port)
    # Connects, and warms both sides up.
    worker.send(memoryview(bytearray(PAYLOAD_BYTES)))
    worker.wait_for(1)
    pipe.send((worker.stream(options.mib * MIB), worker.step(options.width, options.steps)))
    # The other worker may still wait for what this one has queued.
    while not pipe.poll():
        worker.mesh.poll(0.01, lambda *_: None, lambda _: None)


def measure(folder: Path | None, options: argparse.Namespace) -> tuple[float, float]:
    """Return the throughput of one connection in GB/s, and the seconds of a step."""
    context = get_context("fork")
    pairs = [context.Pipe() for _ in HOSTS]
    processes = [
        context.Process(target=measure_worker, args=(theirs, number, folder, options), daemon=True)
        for number, (_, theirs) in enumerate(pairs)
    ]
    for process in processes:
        process.start()
    pipes = [ours for ours, _ in pairs]
    ports = [pipe.recv() for pipe in pipes]
    for pipe in pipes:
        pipe.send(ports[0])
    results = [pipe.recv() for pipe in pipes]
    for pipe in pipes:
        pipe.send(None)
    for process in processes:
        process.join()
    # Worker 1 knows when the last payload was acknowledged.
    return options.mib * MIB / results[1][0] / 1e9, max(step_s for _, step_s in results)


def describe(values: list[float], digits: int) -> str:
    low, high = min(values), max(values)
    return f"{statistics.median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="MiB that the throughput is measured with")
    parser.add_argument(
        "--width", type=int, default=2048, help="a step exchanges 4 * WIDTH**2 bytes each way"
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    plain, encrypted = [], []
    with tempfile.TemporaryDirectory() as folder:
        create_certificate(RunDir(Path(folder)))
        for _ in range(options.repeats):
            plain.append(measure(None, options))
            encrypted.append(measure(Path(folder), options))
    columns = list(zip(*plain, strict=True)), list(zip(*encrypted, strict=True))
    rows = []
    for name, index, scale, digits in (("one connection, GB/s", 0, 1.0, 2), ("step, ms", 1, 1e3, 1)):
        without, with_ = ([scale * value for value in column[index]] for column in columns)
        ratio = statistics.median(with_) / statistics.median(without)
        rows.append([name, describe(without, digits), describe(with_, digits), f"{ratio:.2f}"])
    sys.stdout.write(
        f"Commit {describe_commit()}; a step exchanges {4 * options.width**2:,} bytes each way.\n\n"
    )
    sys.stdout.write(format_table(["", "plain", "--encrypt", "ratio"], rows) + "\n")


if __name__ == "__main__":
    main()
