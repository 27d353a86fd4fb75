"""The digest of a dataset changes with the dataset, and is the same in every process."""

import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from elastane.run.worker.data.fingerprint import digest_dataset


@dataclass
class Pair:
    left: torch.Tensor
    right: str


def make_sample(kind, value):
    return {
        "tensor": lambda: torch.full((2,), float(value)),
        "half": lambda: torch.full((2,), float(value), dtype=torch.bfloat16),
        "array": lambda: np.full(3, value),
        "objects": lambda: np.array([str(value), None], dtype=object),
        "text": lambda: str(value),
        "nested": lambda: {"a": [value, (None, b"x")]},
        "dataclass": lambda: Pair(torch.zeros(1), str(value)),
    }[kind]()


class Data:
    def __init__(self, kind, value, length=10):
        self.kind, self.value, self.length = kind, value, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return make_sample(self.kind, self.value), torch.rand(1) + random.random() + np.random.rand()


@pytest.mark.parametrize("kind", ["tensor", "half", "array", "objects", "text", "nested", "dataclass"])
def test_the_digest_covers_the_content_of_samples(kind):
    assert digest_dataset(Data(kind, 1), 0) == digest_dataset(Data(kind, 1), 0)
    assert digest_dataset(Data(kind, 1), 0) != digest_dataset(Data(kind, 2), 0)


def test_the_digest_covers_length_and_type():
    class Other(Data):
        pass

    digests = {digest_dataset(data, 0) for data in (Data("text", 1), Data("text", 1, 11), Other("text", 1))}
    assert len(digests) == 3


@pytest.mark.parametrize("own", [lambda value: value, lambda value: lambda: value])
def test_a_datasets_own_fingerprint_replaces_its_samples(own):
    class Named(Data):
        def __getitem__(self, index):
            raise AssertionError("looked at")

    one, other = Named("text", 1), Named("text", 1)
    one.fingerprint, other.fingerprint = own("v1"), own("v2")
    assert digest_dataset(one, 0) == digest_dataset(one, 5)
    assert digest_dataset(one, 0) != digest_dataset(other, 0)


def test_the_digest_covers_the_bytes_of_an_image():
    class Image:
        def __init__(self, value):
            self.value = value

        def tobytes(self):
            return bytes([self.value])

    class Images(Data):
        def __getitem__(self, index):
            return Image(self.value)

    assert digest_dataset(Images("", 1), 0) != digest_dataset(Images("", 2), 0)
