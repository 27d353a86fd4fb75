"""Train the job with Elastane; a worker flips a bit of a gradient when the file with its number says so.

The file has a parameter's name, an element and a bit. The flip happens in the next microbatch of the worker
that a spot check compares, once. It stands for a fault of the hardware, so it acts beneath the comparison.
"""

import os
from pathlib import Path

import elastane
import torch
from elastane.run.worker.state.gradients import Gradients
from elastane.run.worker.worker_settings import get_settings

import job
import workload


class Flips:
    """The flips of this worker."""

    def __init__(self, folder: Path, worker: int) -> None:
        self._file = folder / f"{worker}"

    def arm(self, model: torch.nn.Module) -> None:
        begin_leaf, begin_check = Gradients.begin_leaf, Gradients.begin_check

        def begin_checked_leaf(
            gradients: Gradients, *args: object, checked: bool = False, **options: object
        ) -> None:
            begin_leaf(gradients, *args, checked=checked, **options)  # type: ignore[arg-type]
            if checked:
                self._flip_next(model)

        def begin_flipped_check(gradients: Gradients) -> None:
            begin_check(gradients)
            self._flip_next(model)

        Gradients.begin_leaf = begin_checked_leaf  # type: ignore[method-assign, assignment]
        Gradients.begin_check = begin_flipped_check  # type: ignore[method-assign, assignment]

    def _flip_next(self, model: torch.nn.Module) -> None:
        try:
            name, element, bit = self._file.read_text().split()
        except FileNotFoundError:
            return
        self._file.unlink()

        def flip(gradient: torch.Tensor) -> torch.Tensor:
            handle.remove()
            wrong = gradient.clone()
            wrong.view(torch.int32).view(-1)[int(element)] ^= -(1 << 31) if bit == "31" else 1 << int(bit)
            return wrong

        handle = model.get_parameter(name).register_hook(flip)


def main() -> None:
    parsed = job.parse_job()
    size = workload.SIZES[parsed.size]
    run = elastane.join()
    model = workload.GPT(size)
    optimizer = workload.make_optimizer(model)
    Flips(Path(os.environ["FLIPS"]), get_settings().worker).arm(model)
    model, _ = run.prepare(model, optimizer)
    for step in run.steps(
        workload.Tokens(size.context),
        global_batch=parsed.virtual_ranks * size.microbatch,
        microbatch=size.microbatch,
        until=f"{parsed.steps} steps",
    ):
        for inputs, targets in step:
            step.backward(workload.compute_loss(model, inputs, targets))


if __name__ == "__main__":
    main()
