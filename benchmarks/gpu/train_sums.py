"""Train layers with gradients that are large beside their computation, and write what their exchange took.

A script of `workers.py`. Each worker writes a file when it has trained: the bytes that it read of sums, the
seconds in which such a read was under way, and the bytes of sums that lie in memory of the host.
"""

import argparse
import json
import os
import threading
import time
from pathlib import Path
from unittest.mock import patch

import elastane
import torch
from elastane.run.protocol import events
from elastane.run.worker import assembly, worker_settings
from elastane.run.worker.state.placement import Mirrored
from elastane.run.worker.work_queue import Work, WorkQueue
from torch import nn
from torch.utils.data import TensorDataset

WARMUP_STEPS = 3
VIRTUAL_RANKS = 8


class Busy:
    """The time in which a queue has work under way, and the bytes that the work reads."""

    def __init__(self) -> None:
        self.seconds, self.read_bytes = 0.0, 0
        self._under_way, self._since = 0, 0.0
        self._lock = threading.Lock()

    def begin(self, work: Work) -> None:
        with self._lock:
            if not self._under_way:
                self._since = time.perf_counter()
            self._under_way += 1
            self.read_bytes += sum(tensor.nbytes for tensor in work.inputs)

    def end(self) -> None:
        with self._lock:
            self._under_way -= 1
            if not self._under_way:
                self.seconds += time.perf_counter() - self._since

    def forget(self) -> None:
        with self._lock:
            self.seconds, self.read_bytes = 0.0, 0


def watch_queues() -> Busy:
    """Watch the queue of this process."""
    busy = Busy()
    begin, end = WorkQueue.begin, WorkQueue.end

    def begin_watched(queue: WorkQueue, work: Work) -> None:
        begin(queue, work)
        busy.begin(work)

    def end_watched(queue: WorkQueue, answer: events.Event) -> None:
        busy.end()
        end(queue, answer)

    patch.multiple(WorkQueue, begin=begin_watched, end=end_watched).start()
    return busy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parameters", type=int, default=100_000_000)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--rooms", action="store_true", help="on the CPU: memory of the host stands for a GPU's"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        patch.object(assembly, "choose_placement", Mirrored).start()
        if options.rooms:
            from tests.run.processes.scripts import rooms

            rooms.install()
    busy = watch_queues()
    run = elastane.join()
    torch.manual_seed(0)
    width = options.width
    layers = [nn.Linear(width, width, bias=False) for _ in range(max(1, options.parameters // width**2))]
    model = nn.Sequential(*layers).to(device)
    model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9))
    data = TensorDataset(torch.randn(256, width, generator=torch.Generator().manual_seed(1)))
    for step in run.steps(data, global_batch=VIRTUAL_RANKS, microbatch=1, until=options.steps):
        if step.number == WARMUP_STEPS:
            busy.forget()
        for (batch,) in step:
            step.backward(model(batch.to(device)).square().mean())
    assert run._trainer is not None, "the run is prepared"
    state = run._trainer.state
    trained = state.layout.parameter_sections
    arenas = run._trainer.gradients.slots.arenas
    on_host = sum(each.nbytes for arena in arenas for each in arena.tensors[:trained] if bool(each.any()))
    steps = options.steps - WARMUP_STEPS + 1
    figures = {
        "worker": worker_settings.get_settings().worker,
        "gradient_bytes": sum(section.nbytes for section in state.layout.sections[:trained]),
        "read_bytes_a_step": busy.read_bytes // steps,
        "reads_s_a_step": busy.seconds / steps,
        "host_bytes": on_host,
        "rooms": state.placement.rooms is not None,
    }
    (options.out / f"{os.getpid()}.json").write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
