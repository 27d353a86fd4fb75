"""Hyperparameters that a user edits before a run is resumed replace those of the checkpoint."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from elastane.common.errors import BadInput
from elastane.run.worker.state.edited_values import merge_edits, refuse_edits
from elastane.run.worker.state.json_state import to_json

SCHEDULES = {
    "none": lambda optimizer, steps: None,
    "step": lambda optimizer, steps: StepLR(optimizer, steps // 4),
    "lambda": lambda optimizer, steps: LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "cosine": CosineAnnealingLR,
    "sequential": lambda optimizer, steps: SequentialLR(
        optimizer,
        [LinearLR(optimizer, 0.5, total_iters=3), CosineAnnealingLR(optimizer, steps)],
        milestones=[3],
    ),
}


class Trained:
    """An optimizer and its schedule, as a script makes them."""

    def __init__(self, schedule, lr=0.1, steps=20, **options):
        layers = nn.Linear(2, 2), nn.Linear(2, 2)
        groups = [
            {"params": list(layers[0].parameters())},
            {"params": list(layers[1].parameters()), "lr": lr / 2},
        ]
        self.optimizer = SGD(groups, lr=lr, **options)
        self.schedule = SCHEDULES[schedule](self.optimizer, steps)
        self.began = self.describe()

    def describe(self):
        groups = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        return to_json(
            copy.deepcopy({"groups": groups, "schedule": self.schedule and self.schedule.state_dict()})
        )

    def step(self, count):
        rates = []
        for _ in range(count):
            rates.append([group["lr"] for group in self.optimizer.param_groups])
            self.optimizer.step()
            if self.schedule is not None:
                self.schedule.step()
        return rates

    def resume(self, before):
        """Load what an earlier script saved, with the edits of this one; return the edits as texts."""
        merged, edits = merge_edits(before.began, self.began, before.describe())
        for group, values in zip(self.optimizer.param_groups, merged["groups"], strict=True):
            group.update(values)
        if self.schedule is not None:
            self.schedule.load_state_dict(merged["schedule"])
        return [str(edit) for edit in edits]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_script_without_edits_goes_on_with_the_values_of_the_checkpoint(schedule):
    whole, before, after = (Trained(schedule) for _ in range(3))
    expected = whole.step(12)
    assert before.step(5) == expected[:5]
    assert after.resume(before) == []
    assert after.step(7) == expected[5:]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_edited_learning_rate_goes_on_where_the_schedule_was(schedule):
    whole, before, after = Trained(schedule, lr=0.3), Trained(schedule), Trained(schedule, lr=0.3)
    expected = torch.tensor(whole.step(12))
    before.step(5)
    name = "lr" if schedule == "none" else "initial_lr"
    assert after.resume(before) == [f"{name} 0.3 (formerly 0.1)", f"{name} 0.15 (formerly 0.05)"]
    torch.testing.assert_close(torch.tensor(after.step(7)), expected[5:])


def test_settings_of_optimizer_and_schedule_can_be_edited():
    before = Trained("step", steps=20, momentum=0.9)
    before.step(7)
    after = Trained("step", steps=40, momentum=0.5)
    assert after.resume(before) == ["momentum 0.5 (formerly 0.9)", "step_size 10 (formerly 5)"]
    assert {group["momentum"] for group in after.optimizer.param_groups} == {0.5}
    rates = [rate for rate, _ in after.step(6)]
    assert rates[0] == pytest.approx(0.01), "the steps before the edit are not made again"
    assert rates[3:] == pytest.approx([0.001] * 3), "the rate falls at step 10"


def test_values_that_the_script_has_changed_during_the_run_stay():
    before = Trained("none")
    before.optimizer.param_groups[0]["lr"] = 0.01
    after = Trained("none")
    assert after.resume(before) == []
    assert [group["lr"] for group in after.optimizer.param_groups] == [0.01, 0.05]


def test_the_progress_of_a_plateau_schedule_stays():
    def build(patience):
        optimizer = AdamW(nn.Linear(2, 2).parameters(), lr=0.1)
        return ReduceLROnPlateau(optimizer, patience=patience)

    began, now, saved = build(3), build(5), build(3)
    for metric in (1.0, 2.0, 3.0):
        saved.step(metric)
    states = [{"groups": [], "schedule": to_json(schedule.state_dict())} for schedule in (began, now, saved)]
    merged, edits = merge_edits(*states)
    assert [str(edit) for edit in edits] == ["patience 5 (formerly 3)"]
    assert merged["schedule"]["num_bad_epochs"] == 2
    assert merged["schedule"]["best"] == 1.0


def test_edits_that_the_user_has_not_accepted_are_refused():
    _, edits = merge_edits(Trained("none").began, Trained("none", lr=1.0).began, Trained("none").began)
    with pytest.raises(BadInput, match=r"lr 1.0 \(formerly 0.1\); lr 0.5 \(formerly 0.05\)") as refused:
        refuse_edits(edits)
    assert "--accept-changes" in refused.value.do
    refuse_edits(())
