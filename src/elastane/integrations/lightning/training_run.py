"""The run behind a strategy: its steps, one after the other, and the records of each."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

import elastane
from elastane.common.errors import BadInput
from elastane.integrations.lightning.training_data import TrainingData, describe_elasticity
from elastane.run.worker import worker_settings
from elastane.run.worker.data.data_continuity import check_same_epochs
from elastane.run.worker.gangs.gang_checks import OWN_LOOP, refuse_in_gang
from elastane.run.worker.session import Run
from elastane.run.worker.step import TrainingStep


class TrainingRun:
    """One run; a loop of Lightning takes its steps one by one.

    Attributes:
        run: what `elastane.join` returned.
        step: the last step taken; None before the first one.
        computing: microbatches are being computed, so the workers differ.
        exhausted: no step is left to take.
    """

    def __init__(self) -> None:
        refuse_in_gang(
            "the strategy of Lightning",
            "Lightning sees a world of one process, and would not divide the model",
            worker_settings.get_settings().spec.processes,
            instead=OWN_LOOP,
        )
        self.run: Run = elastane.join()
        self.step: TrainingStep | None = None
        self.computing = self.exhausted = False
        self._steps: Iterator[TrainingStep] | None = None
        self._recorded: set[str] = set()

    @property
    def alone(self) -> bool:
        """This process trains alone, under plain ``python``."""
        return worker_settings.get_settings().run_dir is None

    @property
    def cut_short(self) -> bool:
        """The user stopped or paused the run before its last step."""
        return self.step is not None and self.step.cut_short

    def prepare(self, model: nn.Module, optimizer: Optimizer, **options: Any) -> None:
        """Hand the model over to the run."""
        self.run.prepare(model, optimizer, **options)

    def open(self, data: TrainingData, *, global_batch: int, microbatch: int, until: int | str) -> None:
        """Open the run's sequence of steps; `take` begins it."""
        length = len(data.dataset) if hasattr(data.dataset, "__len__") else 0
        check_same_epochs(worker_settings.get_settings().origin, global_batch, length)
        if warning := describe_elasticity(global_batch, microbatch):
            self.run.print(f"warning: {warning}")
        self._steps = self.run.steps(
            data.dataset,
            global_batch=global_batch,
            microbatch=microbatch,
            until=until,
            collate=data.collate,
            loaders=data.loaders,
            prefetch=data.prefetch,
            order=data.order,
        )

    def take(self) -> TrainingStep | None:
        """Return the next step; None: the run has made its last one."""
        assert self._steps is not None, "the steps are open"
        self.step = step = next(self._steps, None) if not self.exhausted else None
        if step is None:
            self.exhausted = True
        self._recorded = set()
        return step

    def finish(self, reason: str) -> None:
        """End the run between two steps; ``reason`` is for a run that ends before its last step."""
        if self.exhausted or self.step is None:
            return
        if not self.step.last:
            self.run.stop(reason)
        self.take()

    def record(self, values: Mapping[str, float]) -> None:
        """Record values of the step just made, except those that it has already."""
        step = self.step
        if step is None or not step.ended or self.exhausted:
            return
        new = {name: value for name, value in values.items() if self._is_new(name, step)}
        self._recorded |= new.keys()
        self.run.log(**new)

    def _is_new(self, name: str, step: TrainingStep) -> bool:
        known = {*self._recorded, *step.means}
        return name not in known and name.removesuffix("_step") not in step.means

    def check_between_steps(self, function: str) -> None:
        """Refuse a call inside a step."""
        if self.computing:
            raise BadInput(
                f"{function} was called inside a step",
                means="each worker computes other microbatches, so they would not do it alike",
                do="call it between two steps: in on_train_batch_end or an epoch's hook of a module, or "
                "after the loop over the batches of an epoch with Fabric",
            )


def choose_device(accelerator: Any) -> torch.device:
    """Return the first device of an accelerator of Lightning."""
    devices: list[torch.device] = accelerator.get_parallel_devices(accelerator.parse_devices(1))
    return devices[0]
