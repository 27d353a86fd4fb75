"""The strategy that trains a Fabric script in an elastic run: ``Fabric(strategy="elastane")``."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies.single_device import SingleDeviceStrategy
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, SequentialSampler

from elastane.common.errors import BadInput
from elastane.integrations.lightning.checkpoint_files import AtomicCheckpointIO
from elastane.integrations.lightning.fabric_loader import MicrobatchLoader, RecordedRun
from elastane.integrations.lightning.fabric_schedules import FabricSchedules
from elastane.integrations.lightning.training_data import TrainingData, choose_microbatch
from elastane.integrations.lightning.training_run import TrainingRun, choose_device
from elastane.run.worker import worker_settings
from elastane.run.worker.session import Run
from elastane.run.worker.state.live_objects import find_live_objects
from elastane.run.worker.values import describe_value

ENDLESS = 1_000_000
"""The epochs of a script that has not said how many it makes; the run ends with the script."""
EUCLIDEAN = 2.0
"""The type of norm by which a run clips."""


class ElastaneFabricStrategy(SingleDeviceStrategy):
    """Trains a Fabric script as an elastic run: workers may join, leave and die.

    The shuffled loader yields microbatches, which differ on each worker. The code after the loop over it runs
    between two steps, on all workers alike. Other loaders yield their whole data on every worker.

    Args:
        microbatch: the samples of a virtual rank; None: the smallest part of up to 8 equal parts of a batch.
        clip_grad_norm: the largest norm of the whole gradient, for scripts that clip it.
        epochs: the number of epochs, for the progress that the run shows; None: the run ends with the script.
        checkpoint_io: of Lightning; None: files that appear complete or not at all.
    """

    shares_steps = True
    """`check_not_wrapped` accepts Fabric's wrapper of the model."""

    def __init__(
        self,
        microbatch: int | None = None,
        *,
        clip_grad_norm: float | None = None,
        epochs: int | None = None,
        accelerator: Any = None,
        checkpoint_io: Any = None,
        precision: Any = None,
    ) -> None:
        super().__init__(
            "cpu",
            accelerator=accelerator,
            checkpoint_io=checkpoint_io or AtomicCheckpointIO(),
            precision=precision,
        )
        self._microbatch, self._clip_grad_norm, self._epochs = microbatch, clip_grad_norm, epochs
        self._training = TrainingRun()
        self._schedules = FabricSchedules(self._training)
        self._loader: MicrobatchLoader | None = None
        self._modules: list[nn.Module] = []
        self._optimizer: Optimizer | None = None

    @property
    def run(self) -> Run | RecordedRun:
        """The run, for `Run.log`, `Run.print` and `Run.keep`."""
        run = self._training.run
        return RecordedRun(run) if self._is_catching_up() else run

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the epochs up to a count, from that of the run on: a process may join or resume later."""
        loader = self._get_loader()
        for epoch in range(loader.find_epoch(), count):
            loader.passes = epoch
            yield epoch

    def _is_catching_up(self) -> bool:
        return self._loader is not None and self._loader.catching_up

    def setup_environment(self) -> None:
        if self.accelerator is not None:
            self._root_device = choose_device(self.accelerator)
        super().setup_environment()

    # -- the model and the data ------------------------------------------------------------------------------

    def setup_module(self, module: nn.Module) -> nn.Module:
        self._modules.append(module)
        return module

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Hand the optimizer and the model that it trains over to the run.

        Raises:
            BadInput: the run has an optimizer already, or no model for this one.
        """
        trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        module = next((m for m in self._modules if trained & {id(p) for p in m.parameters()}), None)
        if self._optimizer is not None or module is None:
            raise BadInput(
                "fabric.setup was given a second optimizer"
                if module
                else "the optimizer trains no model of fabric.setup",
                means="a run trains one model with one optimizer",
                do="put all models into one nn.ModuleDict, build one optimizer with a group for each, and "
                "call model, optimizer = fabric.setup(model, optimizer)",
            )
        self._check_loggers()
        scaler = getattr(self.precision, "scaler", None)
        self._training.prepare(module, optimizer, scaler=scaler, clip_grad_norm=self._clip_grad_norm)
        self._optimizer = optimizer
        return optimizer

    def _check_loggers(self) -> None:
        fabrics = [fabric for fabric in find_live_objects(Fabric) if fabric._strategy is self]
        if not self._training.alone and any(fabric._loggers for fabric in fabrics):
            raise BadInput(
                "Fabric was given loggers",
                means="every worker would write to them, each the values of its own microbatches",
                do="record values with fabric.strategy.run.log(loss=loss), once per step of the run, and "
                "start it with --log tensorboard, mlflow or wandb",
            )

    def process_dataloader(self, dataloader: DataLoader[Any]) -> Any:
        """Return a loader of microbatches for the training data, and any other loader as it is."""
        if isinstance(dataloader, DataLoader) and type(dataloader.sampler) is SequentialSampler:
            return dataloader
        if self._loader is not None:
            raise BadInput(
                "Fabric was given a second loader that shuffles",
                means="the loader that shuffles has the training data, and a run trains on one dataset",
                do="use shuffle=False for the loader of a validation; combine data with ConcatDataset",
            )
        self._loader = MicrobatchLoader(dataloader, self._training, self._open, self._schedules)
        return self._loader

    def _open(self, data: TrainingData) -> None:
        if self._optimizer is None:
            raise BadInput(
                "the training loader was iterated before fabric.setup",
                means="the run has no model yet",
                do="call model, optimizer = fabric.setup(model, optimizer) before the loop",
            )
        self._schedules.adopt(self._optimizer)
        microbatch = choose_microbatch(data.batch, 1, self._microbatch)
        until = f"{self._epochs or ENDLESS} epochs"
        self._training.open(data, global_batch=data.batch, microbatch=microbatch, until=until)

    def _get_loader(self) -> MicrobatchLoader:
        if self._loader is None:
            raise BadInput(
                "Fabric has no training loader yet",
                means="the training data is that of a loader with shuffle=True",
                do="call loader = fabric.setup_dataloaders(DataLoader(dataset, 64, shuffle=True))",
            )
        return self._loader

    # -- a step ----------------------------------------------------------------------------------------------

    def backward(self, tensor: torch.Tensor, module: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        """Run the backward pass of a microbatch.

        Raises:
            BadInput: the script is not in the loop over the training loader.
        """
        self._check_inside("fabric.backward")
        assert self._training.step is not None, "a microbatch belongs to a step"
        self._training.step.backward(tensor)

    def optimizer_step(self, optimizer: Any, **kwargs: Any) -> None:
        """Note that the script is done with the microbatch; the run steps when all gradients are summed.

        Raises:
            BadInput: the script is not in the loop over the training loader, or passes a closure.
        """
        self._check_inside("optimizer.step")
        if kwargs:
            raise BadInput(
                "optimizer.step was given a closure",
                means="the run steps the optimizer once for all workers, with the summed gradients",
                do="call fabric.backward(loss), and optimizer.step() without an argument",
            )
        self._get_loader().stepped = True

    def _check_inside(self, function: str) -> None:
        if not self._training.computing:
            raise BadInput(
                f"{function} was called outside the loop over the training loader",
                means="the run steps once for the batches that this loader yields",
                do="call it in: for batch in loader, where fabric.setup_dataloaders returned the loader",
            )

    def clip_gradients_norm(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = True,
    ) -> Any:
        """Check that the run clips as the script asks; it clips the whole gradient of the step.

        Raises:
            BadInput: the strategy was not given this norm.
        """
        if float(max_norm) != self._clip_grad_norm or float(norm_type) != EUCLIDEAN:
            raise BadInput(
                f"fabric.clip_gradients was given max_norm={describe_value(max_norm)}",
                means="the run clips the whole gradient of a step, which it must know from the beginning",
                do=f"use Fabric(strategy=ElastaneFabricStrategy(clip_grad_norm={max_norm})), with the 2-norm",
            )

    def clip_gradients_value(self, module: nn.Module, optimizer: Optimizer, clip_val: float) -> None:
        raise BadInput(
            f"fabric.clip_gradients was given clip_val={describe_value(clip_val)}",
            means="a run clips the whole gradient of a step by its norm",
            do="use max_norm, and Fabric(strategy=ElastaneFabricStrategy(clip_grad_norm=...))",
        )

    # -- all workers alike -----------------------------------------------------------------------------------

    def all_reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Return a value that is the same on all workers already."""
        self._training.check_between_steps("fabric.all_reduce")
        return super().all_reduce(tensor, *args, **kwargs)

    def all_gather(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return a value that is the same on all workers already."""
        self._training.check_between_steps("fabric.all_gather")
        gathered: torch.Tensor = super().all_gather(tensor, *args, **kwargs)
        return gathered

    def save_checkpoint(
        self,
        path: str | Path,
        state: dict[str, Any],
        storage_options: Any | None = None,
        filter: dict[str, Callable[[str, Any], bool]] | None = None,  # noqa: A002 - Lightning's
    ) -> None:
        """Write a file between two steps; a process that takes part later does not write those of before.

        Raises:
            BadInput: a step is under way, or this worker does not have the optimizer's whole state.
        """
        self._training.check_between_steps("fabric.save")
        if worker_settings.get_settings().spec.copies is not None and _has_optimizer(state):
            raise BadInput(
                "fabric.save cannot write the optimizer's state with --copies",
                means="each worker holds a part of it only; the run's own checkpoints have it whole",
                do="leave the optimizer out of the state, or use --copies all",
            )
        if not self._is_catching_up():
            super().save_checkpoint(path, state, storage_options, filter)

    def load_checkpoint(
        self, path: str | Path, state: Any = None, strict: bool = True, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load weights before the first step.

        Raises:
            BadInput: a step has been made, or the file would set the optimizer's state.
        """
        if self._training.step is not None or _has_optimizer(state):
            raise BadInput(
                "fabric.load would set the state of a run",
                means="a run resumes from its own checkpoints, which have the data's position and all state",
                do="resume with elastane run --resume RUN; or load the model only, before the loop: "
                "fabric.load(path, {'model': model})",
            )
        loaded: dict[str, Any] = super().load_checkpoint(path, state, strict, weights_only)
        return loaded


def _has_optimizer(state: Any) -> bool:
    return isinstance(state, dict) and any(isinstance(value, Optimizer) for value in state.values())


class ElasticFabric(Fabric):
    """A ``Fabric`` of Lightning that trains in a run; ``strategy=`` may still choose another way.

    Args:
        options: those of ``lightning.Fabric``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**({"strategy": "elastane"} | options))
