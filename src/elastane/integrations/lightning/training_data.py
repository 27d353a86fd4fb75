"""The division of a training loader's batches into microbatches, and the loaders that a run can read.

``Trainer(limit_train_batches=...)`` makes epochs of fewer batches. Without shuffling, each has the first
batches of the data. With shuffling, an epoch begins where the last one ended, and the order changes when all
samples were read: so a run sees all of them equally often.
"""

from dataclasses import dataclass, replace
from typing import Any

from lightning.fabric.utilities.seed import pl_worker_init_function
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    default_collate,
)

from elastane.common.errors import BadInput
from elastane.run.worker.data.batch_sources import Collate, MapDataset
from elastane.run.worker.data.epoch_order import Order
from elastane.run.worker.values import describe_value

MOST_DEFAULT_RANKS = 8
"""The most virtual ranks of a step if the script chooses no microbatch."""


@dataclass(frozen=True)
class TrainingData:
    """The contents of a training loader, as arguments of `Run.steps`.

    Args:
        dataset: a map-style dataset.
        batch: the samples in a batch of the loader.
        collate: makes a batch of a list of samples; None: PyTorch's default.
        loaders: the number of loader processes of each worker.
        prefetch: the batches that each loader process loads ahead.
        order: the order of each epoch; None: the run shuffles it.
    """

    dataset: MapDataset
    length: int
    batch: int
    collate: Collate | None
    loaders: int
    prefetch: int
    order: Order | None = None

    @property
    def batches(self) -> int:
        """The number of batches in an epoch."""
        return -(-self.length // self.batch)


def read_training_loader(loader: object) -> TrainingData:
    """Return the contents of a training loader."""
    if not isinstance(loader, DataLoader):
        raise BadInput(
            f"the training data is {describe_value(loader)}",
            means="a run divides the batches of one torch.utils.data.DataLoader among its workers",
            do="pass one DataLoader; combine several datasets with ConcatDataset or StackDataset",
        )
    if isinstance(loader.dataset, IterableDataset):
        raise BadInput(
            f"the training data is a stream ({type(loader.dataset).__name__})",
            means="a loader of a stream has no epochs of known length, which Lightning's loops count with",
            do="use a map-style dataset, or a script with elastane.join() and run.steps, which takes streams",
        )
    _check_order(loader)
    # Fabric adds one that seeds loader processes; the run seeds each batch.
    added = getattr(loader.worker_init_fn, "func", None) is pl_worker_init_function
    if loader.worker_init_fn is not None and not added:
        raise BadInput(
            "the training loader has a worker_init_fn",
            means="the run starts its own loader processes, and seeds each batch by itself",
            do="remove worker_init_fn; open files in the dataset's __getitem__",
        )
    dataset: Any = loader.dataset
    length, batch = len(dataset), loader.batch_size
    assert batch is not None, "checked with the order"
    if loader.drop_last and length % batch:
        raise BadInput(
            f"drop_last=True: the dataset has {length} samples, {length % batch} more than whole batches of "
            f"{batch}",
            means="a run reads every sample once per epoch, so its last step may be smaller",
            do="remove drop_last=True, or use a number of samples that the batch size divides",
        )
    collate = None if loader.collate_fn is default_collate else loader.collate_fn
    prefetch = loader.prefetch_factor or 2
    order = (lambda _epoch: range(length)) if type(loader.sampler) is SequentialSampler else None
    return TrainingData(dataset, length, batch, collate, loader.num_workers, prefetch, order)


def _check_order(loader: DataLoader[Any]) -> None:
    sampler, batches = loader.sampler, loader.batch_sampler
    if type(batches) is not BatchSampler or loader.batch_size is None:
        raise BadInput(
            f"the training loader has a batch sampler of its own ({type(batches).__name__})",
            means="the run chooses the samples of each step, so that they do not depend on its workers",
            do="pass DataLoader(dataset, batch_size=..., shuffle=True)",
        )
    if type(sampler) is SequentialSampler:
        return
    if type(sampler) is not RandomSampler or sampler.replacement or len(sampler) != len(sampler.data_source):
        raise BadInput(
            f"the training loader has a sampler of its own ({type(sampler).__name__})",
            means="a run reads each sample once per epoch, shuffled or in the order of the dataset",
            do="pass shuffle=True or shuffle=False, without a sampler",
        )


def choose_microbatch(batch: int, accumulated: int, asked: int | None) -> int:
    """Return the samples of a virtual rank.

    The choice depends on nothing but the script, so a run has the same virtual ranks on any number of
    workers. Without a wish, a step of several batches has one virtual rank for each batch; a step of one
    batch has up to 8.

    Args:
        batch: the samples in a batch of the loader.
        accumulated: the batches in a step.
        asked: the ``microbatch`` of the strategy; None: not given.

    Raises:
        BadInput: the microbatch does not divide the step.
    """
    if asked is None:
        if accumulated > 1:
            return batch
        ranks = next(number for number in range(MOST_DEFAULT_RANKS, 0, -1) if batch % number == 0)
        return batch // ranks
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1 or (batch * accumulated) % asked:
        raise BadInput(
            f"the strategy was given microbatch={describe_value(asked)} for steps of {batch * accumulated} "
            "samples",
            means="a step consists of whole microbatches, one for each virtual rank",
            do=f"choose a microbatch that divides {batch * accumulated}",
        )
    return asked


def describe_elasticity(global_batch: int, microbatch: int) -> str:
    """Return a warning if a step cannot be divided among workers; empty: it can."""
    if global_batch // microbatch > 1:
        return ""
    return (
        f"each step is one microbatch of {microbatch} samples, so the run can use one worker only: pass a "
        "smaller microbatch to the strategy, or a batch size that more numbers divide"
    )


def count_batches(data: TrainingData, limit: float) -> int:
    """Return the number of batches in an epoch of Lightning; a float limit is a fraction of them."""
    batches = min(limit, data.batches) if isinstance(limit, int) else int(data.batches * limit)
    if not batches:
        raise BadInput(
            f"Trainer(limit_train_batches={limit!r}) leaves none of {data.batches} batches",
            means="an epoch would train on nothing",
            do=f"pass a number of batches, from 1 to {data.batches}, or a larger fraction",
        )
    return batches


def limit_data(data: TrainingData, batches: int, accumulated: int) -> TrainingData:
    """Return the data from which epochs of this number of batches are read, in whole steps."""
    if batches == data.batches:
        return data
    if data.order is not None:
        length = batches * data.batch
        whole: Any = data.dataset
        return replace(
            data, dataset=Subset(whole, range(length)), length=length, order=lambda _epoch: range(length)
        )
    if batches % accumulated:
        multiple = -(-batches // accumulated) * accumulated
        raise BadInput(
            f"limit_train_batches gives epochs of {batches} batches, and a step has {accumulated}",
            means="with shuffle=True the next epoch begins after the last step, so an epoch has whole steps",
            do=f"choose a multiple of accumulate_grad_batches, such as limit_train_batches={multiple}",
        )
    return data
