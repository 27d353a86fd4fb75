"""Checks of the data that a script passes to ``run.steps`` and ``run.evaluate``."""

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from elastane.common.errors import BadInput
from elastane.run.worker.values import describe_value

COMPARED = 2
"""The least number of items, or of parts of an item, that can be compared."""
FEW = 4
"""A tuple of at most this number of tensors is more likely inputs and targets than a dataset of samples."""


def check_dataset(dataset: object, function: str) -> None:
    """Refuse data that is neither a map-style dataset nor a stream.

    Args:
        function: the name of the function that the script called, for the message.
    """
    refusal = _explain_refusal(dataset)
    if refusal is not None:
        what, means, do = refusal
        raise BadInput(f"{function} was given {what}", means=means, do=do)


def check_positions(dataset: object, function: str) -> None:
    """Refuse data without samples by position."""
    check_dataset(dataset, function)
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise BadInput(
            f"{function} was given {describe_value(dataset)}, which has no samples by position",
            means="the workers divide the samples among themselves by position",
            do="pass a dataset with __len__ and __getitem__, such as a list of the samples",
        )


def check_count(function: str, name: str, value: object, least: int = 1) -> None:
    """Refuse a value that is not a whole number, or too small."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise BadInput(
            f"{function} was given an invalid {name}: {describe_value(value)}",
            means=f"{name} must be a whole number, {least} or more",
            do=f"pass a number, such as {name}={max(least, 8)}",
        )


def check_collate(function: str, collate: object) -> None:
    """Refuse a collate argument that is not a function."""
    if collate is not None and not callable(collate):
        raise BadInput(
            f"{function} was given an invalid collate: {describe_value(collate)}",
            means="collate must be a function that makes a batch of a list of samples",
            do="pass such a function, or leave it out for PyTorch's default",
        )


def _explain_refusal(dataset: object) -> tuple[str, str, str] | None:
    """Return the problem of the data, its meaning and what to pass instead; None: the data is accepted."""
    name = describe_value(dataset)
    shares = "the run divides samples among a changing number of workers, so it reads them by position"
    if isinstance(dataset, DataLoader):
        means = "the run itself shuffles, batches and loads ahead, so that any number of workers can do it"
        do = (
            "pass loader.dataset; instead of batch_size pass global_batch and microbatch, instead of "
            "collate_fn pass collate=, and instead of num_workers pass loaders="
        )
        return name, means, do
    if isinstance(dataset, str | bytes | os.PathLike):
        do = "read the data first and pass it: datasets.load_dataset('csv', data_files=path)['train']"
        return f"{describe_value(dataset)}, not the data in it", shares, do
    if isinstance(dataset, Mapping):
        keys = ", ".join(repr(key) for key in list(dataset)[:FEW] if isinstance(key, str))
        do = f"pass one part ({keys}), such as dataset['train']; for columns pass TensorDataset(x, y)"
        return f"{name}, which has parts by name instead of samples", shares, do
    if isinstance(dataset, Sampler):
        return (
            f"{name}, a sampler",
            "the run itself shuffles",
            "pass the dataset that the sampler samples from",
        )
    if isinstance(dataset, Iterator) and not hasattr(dataset, "__getitem__"):
        do = (
            "pass the dataset itself, or a list of its samples; for a stream pass a function "
            "(shard, shards) that returns an iterable over that shard"
        )
        return f"{name}, which can be read only once", "a worker may have to read a sample again", do
    if (
        isinstance(dataset, type)
        and issubclass(dataset, Dataset)
        and not issubclass(dataset, IterableDataset)
    ):
        return f"the class {dataset.__name__}", shares, f"pass an instance: {dataset.__name__}(...)"
    if isinstance(dataset, tuple | list) and _is_columns(dataset):
        do = "pass torch.utils.data.TensorDataset(inputs, targets)"
        return f"{name} of {len(dataset)} tensors of equal length", "each tensor would be one sample", do
    return _explain_function(dataset) if _is_factory(dataset) else _explain_rest(dataset)


def _is_factory(dataset: object) -> bool:
    is_class = isinstance(dataset, type)
    return is_class or (
        callable(dataset) and not any(hasattr(dataset, m) for m in ("__iter__", "__getitem__"))
    )


def _explain_function(dataset: Any) -> tuple[str, str, str] | None:
    try:
        inspect.signature(dataset).bind(0, 1)
    except TypeError:
        name = getattr(dataset, "__name__", type(dataset).__name__)
        return (
            f"the function {name}, which does not take (shard, shards)",
            "the run calls it once for each shard, with the number of the shard and of all shards",
            f"write def {name}(shard, shards): ..., or pass list({name}()) if the samples fit into memory",
        )
    except ValueError:  # written in C, without a signature
        return None
    return None


def _explain_rest(dataset: object) -> tuple[str, str, str] | None:
    if hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__"):
        is_unordered = isinstance(dataset, set | frozenset)
        do = "pass a list of its samples, such as sorted(...)"
        return ("a set", "each process would read it in another order", do) if is_unordered else None
    return (
        describe_value(dataset),
        "it is neither a dataset nor a function that opens the shards of a stream",
        "pass a dataset with __len__ and __getitem__, an IterableDataset, or a function (shard, shards)",
    )


def _is_columns(parts: tuple[Any, ...] | list[Any]) -> bool:
    """Return whether these tensors look like a dataset's columns; samples would have equal shapes."""
    if not 1 < len(parts) <= FEW or not all(isinstance(part, torch.Tensor | np.ndarray) for part in parts):
        return False
    kinds = {(tuple(part.shape), str(part.dtype)) for part in parts}
    lengths = {part.shape[0] if part.ndim else 0 for part in parts}
    return len(kinds) > 1 and len(lengths) == 1 and lengths != {0} and max(lengths) > len(parts)


def count_batch_rows(dataset: object) -> int:
    """Return the number of rows of each item, if the data looks like a list of batches; 0 if not.

    The first items of such a list are tuples or dicts of tensors with the same first dimension.
    """
    if not isinstance(dataset, list | tuple) or len(dataset) < COMPARED:
        return 0
    rows = {_count_rows(item) for item in dataset[:COMPARED]}
    return rows.pop() if len(rows) == 1 else 0


def _count_rows(item: object) -> int:
    if not isinstance(item, Mapping | list | tuple) or len(item) < COMPARED:
        return 0
    parts = item.values() if isinstance(item, Mapping) else item
    first = {part.shape[0] if isinstance(part, torch.Tensor) and part.ndim else 0 for part in parts}
    return first.pop() if len(first) == 1 else 0


def collate_samples(collate: Callable[[list[Any]], Any], samples: list[Any]) -> Any:
    """Return a batch made by PyTorch's default collate function.

    Raises:
        BadInput: the function cannot collate samples of this kind.
    """
    try:
        return collate(samples)
    except (TypeError, RuntimeError, KeyError, ValueError) as error:
        kind, text = type(samples[0]).__name__, str(error).strip()
        raise BadInput(
            f"cannot make a batch of samples of the dataset; the first one has the type {kind}",
            means=text.splitlines()[0] if text else type(error).__name__,
            do="return tensors or numbers of equal shapes from the dataset, or pass collate=, a function "
            "that makes a batch of a list of samples",
        ) from error
