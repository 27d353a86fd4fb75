"""Epochs of fewer batches than the training data has: ``Trainer(limit_train_batches=...)``.

Without shuffling, each epoch has the first batches of the data. With shuffling, an epoch begins where the
last one ended, and the order changes when all samples were read: so a run sees all of them equally often.
"""

from dataclasses import replace
from typing import Any

from torch.utils.data import Subset

from elastane.common.errors import BadInput
from elastane.integrations.lightning.training_data import TrainingData


def count_batches(data: TrainingData, limit: float) -> int:
    """Return the number of batches in an epoch of Lightning.

    Args:
        data: the whole data.
        limit: a number of batches, or a float as a fraction of them.

    Raises:
        BadInput: no batch is left.
    """
    batches = min(limit, data.batches) if isinstance(limit, int) else int(data.batches * limit)
    if not batches:
        raise BadInput(
            f"Trainer(limit_train_batches={limit!r}) leaves none of {data.batches} batches",
            means="an epoch would train on nothing",
            do=f"pass a number of batches, from 1 to {data.batches}, or a larger fraction",
        )
    return batches


def limit_data(data: TrainingData, batches: int, accumulated: int) -> TrainingData:
    """Return the data from which epochs of this number of batches are read.

    Args:
        data: the whole data.
        batches: of an epoch.
        accumulated: the batches in a step.

    Raises:
        BadInput: an epoch would end within a step.
    """
    if batches == data.batches:
        return data
    if data.order is not None:
        length = batches * data.batch
        whole: Any = data.dataset
        return replace(
            data,
            dataset=Subset(whole, range(length)),
            length=length,
            order=lambda _epoch: range(length),
        )
    if batches % accumulated:
        multiple = -(-batches // accumulated) * accumulated
        raise BadInput(
            f"limit_train_batches gives epochs of {batches} batches, and a step has {accumulated}",
            means="with shuffle=True the next epoch begins after the last step, so an epoch has whole steps",
            do=f"choose a multiple of accumulate_grad_batches, such as limit_train_batches={multiple}",
        )
    return data
