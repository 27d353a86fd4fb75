"""The card shows the groups of the optimizer as they were at the end."""

from elastane.run.observability.card import FinishedModel, OptimizerGroups, write_card_text
from elastane.run.observability.metrics import compute_metrics

GROUPS = OptimizerGroups(
    "AdamW",
    (
        {"lr": 0.00031, "betas": [0.9, 0.95], "weight_decay": 0.1, "params": ["a.weight", "b|c", "d", "e"]},
        {"lr": 0.00031, "betas": [0.9, 0.95], "weight_decay": 0.0, "params": ["a.bias"]},
    ),
)


def write_card(run, optimizer):
    model = FinishedModel(files=(("model.safetensors", 1400),), optimizer=optimizer)
    return write_card_text(run, compute_metrics(run), model)


def test_each_group_has_its_parameters_and_its_own_settings(make_run) -> None:
    card = write_card(make_run(), GROUPS)
    assert "| group | parameters | weight\\_decay |" in card
    assert "| 0 | 4: a.weight, b\\|c, d and 1 more | 0.1 |" in card
    assert "| 1 | 1: a.bias | 0 |" in card
    assert "In all groups: lr 0.00031, betas (0.9, 0.95)." in card
    assert "AdamW(lr=0.001)" not in card, "the defaults were never used by these groups"


def test_a_run_without_recorded_groups_shows_the_initial_ones(make_run) -> None:
    assert "AdamW(lr=0.001)" in write_card(make_run(), None)
