"""The private names of Lightning that Elastane uses, each with an object that shows it."""

import warnings
from functools import cache

import torch

from tests.lazy_modules import LazyModule

lightning = LazyModule("lightning")


@cache
def make_trainer():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)


def make_checkpoint():
    return lightning.pytorch.callbacks.ModelCheckpoint()


def make_result():
    from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection

    results = _ResultCollection(training=True)
    results.log("training_step", "loss", torch.ones(()), on_step=True, batch_size=1)
    return results["training_step.loss"]


ATTRIBUTES = {
    "_accelerator_connector": make_trainer,
    "_batches_that_stepped": lambda: make_trainer().fit_loop.epoch_loop,
    "_call_callback_hooks": lambda: lightning.pytorch.trainer.call,
    "_call_lightning_module_hook": lambda: lightning.pytorch.trainer.call,
    "_call_strategy_hook": lambda: lightning.pytorch.trainer.call,
    "_computed": make_result,
    "_current_fx": lambda: make_trainer()._logger_connector,
    "_data_source": lambda: make_trainer().fit_loop,
    "_first_loop_iter": lambda: make_trainer()._logger_connector,
    "_forward_cache": make_result,
    "_logger_connector": make_trainer,
    "_loggers": lambda: lightning.Fabric(accelerator="cpu"),
    "_on_before_batch_transfer": lambda: lightning.LightningModule,
    "_parallel_devices": lambda: make_trainer()._accelerator_connector,
    "_should_check_val_fx": lambda: make_trainer().fit_loop.epoch_loop,
    "_signal_connector": make_trainer,
    "_strategy": lambda: lightning.Fabric(accelerator="cpu"),
    "_train_time_interval": make_checkpoint,
    # Only by name, in a string:
    "_callback_metrics": lambda: make_trainer()._logger_connector,
    "_defer_save_until_validation": make_checkpoint,
    "_last_checkpoint_saved": make_checkpoint,
    "_last_global_step_saved": make_checkpoint,
    "_logged_metrics": lambda: make_trainer()._logger_connector,
    "_optimizer": lambda: lightning.Fabric(accelerator="cpu").setup_optimizers(make_optimizer()),
    "_progress_bar_metrics": lambda: make_trainer()._logger_connector,
    "_val_check_time_interval": make_trainer,
}


def make_optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])


IMPORTS = {
    "lightning.fabric.loggers.logger": {"_DummyExperiment"},
    "lightning.pytorch.loops.fit_loop": {"_FitLoop"},
    "lightning.pytorch.loops.training_epoch_loop": {"_TrainingEpochLoop"},
    "lightning.pytorch.trainer.connectors.data_connector": {"_request_dataloader"},
    "lightning.pytorch.trainer.connectors.logger_connector.result": {"_ResultCollection", "_ResultMetric"},
}
