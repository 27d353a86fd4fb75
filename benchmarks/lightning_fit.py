"""Compare the speed of ``strategy="elastane"`` with that of Lightning's own loop, on one worker.

Both train the same module with the same microbatches, in turns, in one process each and with one thread. Run
``python benchmarks/lightning_fit.py``; it prints JSON with one ratio for each repetition.
"""

import argparse
import json
import subprocess
import sys
import time
import warnings
from importlib import import_module
from itertools import pairwise
from statistics import median, quantiles

SAMPLES, BATCH, ACCUMULATED = 2048, 32, 4


def train(strategy: str, epochs: int, width: int) -> float:
    """Train and return the time of a step, in seconds: the fastest tenth, without the first epoch.

    Other load on the machine makes some steps slower and none faster.
    """
    import_module("elastane.integrations.lightning")  # registers the strategy
    import lightning
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)

    class Wide(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
            )
            self.times: tuple[float, ...] = ()

        def training_step(self, batch: list[torch.Tensor], _batch_idx: int) -> torch.Tensor:
            loss = functional.cross_entropy(self.layers(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def on_train_batch_end(self, *_args: object) -> None:
            if not self.trainer.fit_loop.epoch_loop._should_accumulate():
                self.times = (*self.times, time.perf_counter())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    data = TensorDataset(torch.randn(SAMPLES, width), torch.randint(10, (SAMPLES,)))
    module = Wide()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            strategy=strategy,
            accelerator="auto",
            devices=1,
            max_epochs=epochs,
            accumulate_grad_batches=ACCUMULATED,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, DataLoader(data, BATCH, shuffle=True))
    steps = SAMPLES // (BATCH * ACCUMULATED)
    times = module.times[steps:]
    return quantiles((after - before for before, after in pairwise(times)), n=10)[0]


def measure(strategy: str, epochs: int, width: int) -> float:
    """Return the time of a step in a process of its own."""
    command = [sys.executable, __file__, "--strategy", strategy]
    command += ["--epochs", str(epochs), "--width", str(width)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(output.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--width", type=int, default=512, help="of each of the two hidden layers")
    parser.add_argument("--strategy", help="measure this one only, and print seconds")
    options = parser.parse_args()
    if options.strategy:
        print(train(options.strategy, options.epochs, options.width))
        return
    pairs = [
        (
            measure("elastane", options.epochs, options.width),
            measure("auto", options.epochs, options.width),
        )
        for _ in range(options.repetitions)
    ]
    speeds = sorted(theirs / ours for ours, theirs in pairs)
    print(
        json.dumps(
            {
                "elastane_step_s": [ours for ours, _ in pairs],
                "lightning_step_s": [theirs for _, theirs in pairs],
                "speed_over_lightning": {"median": median(speeds), "least": speeds[0], "most": speeds[-1]},
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
