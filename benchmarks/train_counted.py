"""Train a perceptron; write the bytes of payloads that this worker sends, by round, peer and message."""

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import elastane
import torch
from elastane.run.protocol.messages import AnyPeerMessage, PartialSumsReady, Published, SumsReady, Vote
from elastane.run.worker.links.frames import Buffer
from elastane.run.worker.links.mesh import Mesh
from torch.nn import functional
from torch.utils.data import TensorDataset

SENT = "sent-"
"""Begins the name of the file of each worker."""


def count_sent_bytes(folder: Path) -> None:
    """Count what this process sends from now on; the file is complete up to its last vote."""
    counts: Counter[str] = Counter()
    send = Mesh.send

    def count(
        mesh: Mesh, peer: int, message: AnyPeerMessage, payload: Iterable[Buffer] | None = None
    ) -> None:
        pieces = list(payload or ())
        if isinstance(message, PartialSumsReady | SumsReady | Published | Vote):
            size = sum(memoryview(piece).nbytes for piece in pieces)
            counts[f"{message.round} {peer} {type(message).__name__}"] += size
        if isinstance(message, Vote):
            # Renamed, so that a reader sees a whole file.
            new = folder / f"new-{mesh.worker}"
            new.write_text(json.dumps(counts))
            new.rename(folder / f"{SENT}{mesh.worker}")
        send(mesh, peer, message, pieces)

    Mesh.send = count  # type: ignore[method-assign,assignment]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--virtual-ranks", type=int, default=8)
    options = parser.parse_args()
    count_sent_bytes(options.folder)
    run = elastane.join()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1024), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(1024, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = run.prepare(model, optimizer)
    data = TensorDataset(torch.randn(4096, 64), torch.randint(0, 10, (4096,)))
    steps = run.steps(data, global_batch=8 * options.virtual_ranks, microbatch=8, until=10_000)
    for step in steps:
        for batch, targets in step:
            step.backward(functional.cross_entropy(model(batch), targets))
        time.sleep(0.05)


if __name__ == "__main__":
    main()
