"""Votes compare what the script gives to attributes of modules between two steps, and nothing else."""

import time

import pytest
import torch
from torch import nn

from elastane.run.worker.state.module_attributes import find_other_values, read_attributes
from elastane.run.worker.state.script_changes import MOST_NAMED, digest_changes

LEFT_BY_FORWARD = torch.ones(3)


class Settings:
    def __init__(self):
        self.rate = 0.5


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.number, self.text, self.none, self.numbers = 1, "one", None, [1, 2]
        self.tensor, self.settings = torch.zeros(2), Settings()


def digest(change, pass_forward=lambda _part: None):
    """Return the digests of what one worker's script changes after a forward pass has changed something."""
    model = nn.Sequential(Part())
    before = read_attributes(model.named_modules())
    pass_forward(model[0])
    left = {path: vars(module).copy() for path, module in model.named_modules()}
    change(model[0])
    now = read_attributes(model.named_modules(), before)
    return digest_changes(before, find_other_values(before, now), left)


def set_to(name, value):
    return lambda part: setattr(part, name, value)


def append(part):
    part.numbers.append(3)


@pytest.mark.parametrize(
    ("name", "change", "other"),
    [
        ("number", set_to("number", 2), set_to("number", 2.0)),
        ("text", set_to("text", "two"), set_to("text", "three")),
        ("none", set_to("none", 0), set_to("none", False)),
        ("numbers", append, set_to("numbers", [3])),
        ("tensor", set_to("tensor", torch.ones(2)), set_to("tensor", torch.full((2,), 1 + 1e-7))),
        ("added", set_to("added", {"a": 1}), set_to("added", {"a": 2})),
    ],
)
def test_a_change_has_a_digest_of_its_value(name, change, other):
    found = digest(change)
    assert found.keys() == {f"the attribute 0.{name}"}
    assert found == digest(change)
    assert digest(other) != found


@pytest.mark.parametrize(
    "leave",
    [set_to("none", 0.5), set_to("added", 0.5), set_to("none", [1]), set_to("tensor", LEFT_BY_FORWARD)],
)
def test_what_forward_passes_leave_does_not_come_from_the_script(leave):
    assert digest(lambda _part: None, leave) == {}
    # A worker without such a forward pass agrees with it about the changes of the script.
    name = "the attribute 0.none"
    assert digest(set_to("none", 7), leave)[name] == digest(set_to("none", 7))[name]


@pytest.mark.parametrize("change", [set_to("number", 1), set_to("numbers", [1, 2]), set_to("none", None)])
def test_an_equal_value_is_no_change(change):
    assert digest(change) == {}


def test_large_data_objects_and_functions_are_not_compared():
    assert digest(set_to("added", torch.zeros(1 << 20))) == digest(set_to("added", print)) == {}
    assert digest(lambda part: setattr(part.settings, "rate", 0.75)) == {}


@pytest.mark.parametrize(
    "clock", [time.time, time.perf_counter, time.monotonic, time.time_ns, time.monotonic_ns]
)
def test_the_time_of_day_is_left_out(clock):
    assert digest(lambda part: setattr(part, "began", clock())) == {}


@pytest.mark.parametrize("number", [1.0, 0.5, 7, 10**18, float(10**9)])
def test_a_number_that_no_clock_has_shown_is_compared(number):
    assert digest(set_to("number", number)).keys() == {"the attribute 0.number"}


def test_modes_are_compared_elsewhere():
    assert digest(nn.Module.eval) == {}


def test_many_changes_have_one_digest():
    def change(value):
        return lambda part: [setattr(part, f"added_{number}", value) for number in range(MOST_NAMED + 1)]

    assert digest(change(1)).keys() == {"attributes of modules"}
    assert digest(change(1)) != digest(change(2))
