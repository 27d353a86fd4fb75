"""A script of Lightning becomes elastic by one changed import."""

import warnings

import pytest
import torch
from torch.utils.data import DataLoader

from elastane.common.errors import BadInput
from tests.lazy_modules import LazyModule

from .points import Points

elastic = LazyModule("elastane.integrations.lightning")
lightning = LazyModule("lightning")
modules = LazyModule("tests.integrations.lightning.modules")
pytestmark = pytest.mark.usefixtures("libraries")

QUIET = {
    "accelerator": "cpu",
    "max_epochs": 2,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


@pytest.fixture(autouse=True)
def quiet_lightning():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_the_trainer_trains_as_with_the_strategy_by_name():
    module, other = modules.make_module(modules.PointsModule), modules.make_module(modules.PointsModule)
    trainer = elastic.Trainer(**QUIET)
    trainer.fit(module, DataLoader(Points(), 8, shuffle=True))
    modules.fit(other, DataLoader(Points(), 8, shuffle=True))
    assert isinstance(trainer.strategy, elastic.ElastaneStrategy)
    assert trainer.strategy.run.step == 10
    assert torch.equal(module.layer.weight, other.layer.weight)


def test_another_strategy_may_still_be_chosen():
    assert not isinstance(elastic.Trainer(strategy="auto", **QUIET).strategy, elastic.ElastaneStrategy)


def test_fabric_has_the_strategy():
    assert isinstance(elastic.Fabric(accelerator="cpu").strategy, elastic.ElastaneFabricStrategy)


def test_every_other_name_is_that_of_lightning():
    assert elastic.LightningModule is lightning.LightningModule
    assert elastic.callbacks is lightning.pytorch.callbacks
    assert elastic.seed_everything is not None
    with pytest.raises(AttributeError, match="LightningModul"):
        _ = elastic.LightningModul


def test_a_module_of_the_old_package_is_refused_with_the_name_of_the_new_one():
    theirs = type("TheirModule", (), {"__module__": "pytorch_lightning.core.module"})
    mine = type("Mine", (theirs,), {"__module__": "train"})
    with pytest.raises(BadInput, match=r"lightning\.pytorch as pl"):
        elastic.Trainer(**QUIET).fit(mine())
