"""The order in which a Trainer's own loader reads the samples of each epoch."""

from typing import Any

import torch

from elastane.common.errors import BadInput
from elastane.run.protocol.sampling import mix


class SampleOrder:
    """The order of the samples in each epoch, drawn from the batch sampler of a data loader.

    A sampler may have a generator of its own, which moves on with each epoch. So the epochs are drawn one
    after the other, and every process draws the same.

    Args:
        loader: the Trainer's data loader.
        batch: samples of a batch.
        seed: for samplers that draw from torch's global generator.
    """

    def __init__(self, loader: Any, batch: int, seed: int) -> None:
        self._loader, self._batch, self._seed = loader, batch, seed
        self._following = 0
        self._last: list[int] = []

    def __call__(self, epoch: int) -> list[int]:
        """Return the dataset indices of an epoch, in order.

        Raises:
            BadInput: the sampler makes batches of different sizes.
        """
        while self._following <= epoch:
            self._last = self._draw(self._following)
            self._following += 1
        assert epoch == self._following - 1, "a run reads its epochs in order"
        return self._last

    def _draw(self, epoch: int) -> list[int]:
        if callable(set_epoch := getattr(self._loader, "set_epoch", None)):
            set_epoch(epoch)
        sampler = self._loader.batch_sampler
        inner = getattr(sampler, "batch_sampler", sampler)
        if callable(set_epoch := getattr(inner, "set_epoch", None)):
            set_epoch(epoch)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(mix(mix(self._seed) ^ epoch) >> 1)
            batches = [list(batch) for batch in sampler]
        sizes = {len(batch) for batch in batches[:-1]} - {self._batch}
        if sizes or not batches or len(batches[-1]) > self._batch:
            raise BadInput(
                f"the sampler of get_train_dataloader makes batches of other sizes than {self._batch}",
                means="all virtual ranks of a step have the same number of samples",
                do="return a DataLoader with batch_size=self.args.per_device_train_batch_size",
            )
        return [index for batch in batches for index in batch]
