"""Random seeds and thread counts that make a batch and its computation the same in every process."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from elastane.run.protocol.sampling import derive_random_key

BETWEEN, AHEAD = 1 << 32, 1 << 33
"""In place of a virtual rank, in keys of numbers drawn after a step and before the next microbatches."""


def seed_everything(key: int) -> None:
    """Seed every generator that a model or a dataset may draw from."""
    # Not torch.manual_seed: without an accelerator in use, it takes 0.1 ms to record a stack trace.
    torch.default_generator.manual_seed(key)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(key)
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)  # noqa: NPY002 - datasets use the global generator


@contextmanager
def use_one_thread() -> Iterator[None]:
    """Use one intra-op thread, as loader processes do, so that a batch has the same bits in both."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def preserve_generators() -> Iterator[None]:
    """Restore the state of every generator after the block."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002 - as above
    on_device = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])  # noqa: NPY002
        if on_device:
            torch.cuda.set_rng_state_all(on_device)


class ScriptSeeds:
    """The seeds of the numbers that the script draws outside the microbatches of a step."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._evaluations = 0

    def seed_ahead(self, step: int) -> None:
        """Seed the numbers that the script draws before the microbatches of a step."""
        seed_everything(derive_random_key(self._seed, step, AHEAD))

    def seed_after(self, step: int) -> None:
        """Seed the numbers that the script draws after a step."""
        self._evaluations = 0
        seed_everything(self._derive_key_after(step))

    def seed_evaluation(self, step: int, virtual_rank: int) -> None:
        """Seed the numbers that the script draws for one virtual rank of an evaluation after a step."""
        seed_everything(derive_random_key(self._derive_key_after(step), step, virtual_rank))

    def end_evaluation(self, step: int) -> None:
        """Seed the numbers that the script draws after an evaluation; the next evaluation gets others."""
        self._evaluations += 1
        seed_everything(self._derive_key_after(step))

    def _derive_key_after(self, step: int) -> int:
        return derive_random_key(self._seed, step, BETWEEN + self._evaluations)
