"""``model.safetensors``: any loader reads it, and equal states give equal bytes."""

import pytest
import safetensors
import safetensors.torch
import torch
from torch import nn

from elastane.runtime.worker import write_model

from .lessons import FEATURES, Lesson, assert_same_bits, elastic


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES)
        self.norm = nn.BatchNorm1d(FEATURES)
        self.second = nn.Linear(FEATURES, FEATURES)
        self.second.weight = self.first.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.first(inputs)))


@pytest.mark.parametrize("copies", [None, 2])
def test_equal_states_give_equal_bytes(tmp_path, copies):
    for name, wishes in {"one": {}, "two": {"copies": copies}}.items():
        write_model(elastic(Lesson(Tied), **wishes).run._training.state, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_the_file_loads_into_a_fresh_model_tied_weights_and_buffers_included(tmp_path):
    learned = elastic(Lesson(Tied))
    write_model(learned.run._training.state, tmp_path / "model.safetensors")
    fresh = Tied()
    safetensors.torch.load_model(fresh, tmp_path / "model.safetensors")
    assert_same_bits(fresh, learned.model)


def test_tied_weights_are_stored_once_and_the_other_name_is_kept(tmp_path):
    write_model(elastic(Lesson(Tied)).run._training.state, tmp_path / "model.safetensors")
    with safetensors.safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert "second.weight" not in file.keys()  # noqa: SIM118 - it is no dictionary
        assert file.metadata() == {"format": "pt", "second.weight": "first.weight"}


def test_a_write_that_fails_leaves_the_file_before_as_it_was(tmp_path):
    target = tmp_path / "model.safetensors"
    target.write_bytes(b"before")
    (tmp_path / "model.partial").mkdir()
    with pytest.raises((OSError, safetensors.SafetensorError)):
        write_model(elastic(Lesson(Tied)).run._training.state, target)
    assert target.read_bytes() == b"before"
