"""What a run cannot keep exactly is refused, by name, with the reason and what to do instead."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import IterableDataset

from elastane.common.errors import BadInput
from tests.lazy_modules import LazyModule

callbacks = LazyModule("tests.integrations.callbacks")
elastic = LazyModule("elastane.integrations.transformers")
transformers = LazyModule("transformers")
pytestmark = pytest.mark.usefixtures("libraries")


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"torch_compile": True, "torch_compile_backend": "eager"}, "torch_compile"),
        ({"push_to_hub": True, "hub_model_id": "me/model"}, "push_to_hub"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
        ({"train_sampling_strategy": "batch_rebalance"}, "batch_rebalance"),
        ({"ignore_data_skip": True}, "ignore_data_skip"),
        ({"enable_jit_checkpoint": True}, "enable_jit_checkpoint"),
        ({"lr_scheduler_type": "greedy", "eval_strategy": "epoch"}, "greedy"),
        ({"optim": "lomo"}, "lomo"),
        ({"accelerator_config": {"split_batches": True}}, "split_batches"),
        ({"accelerator_config": {"dispatch_batches": True}}, "dispatch_batches"),
        (
            {"dataloader_num_workers": 1, "dataloader_multiprocessing_context": "spawn"},
            "multiprocessing_context",
        ),
        ({"train_dataset": Stream(), "max_steps": 3}, "train_dataset without positions"),
        ({"dataloader_drop_last": True}, "dataloader_drop_last"),
        ({"callback": "BeforeOptimizer"}, "on_pre_optimizer_step"),
        ({"callback": "StopEpoch"}, "should_epoch_stop"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_argument_is_refused_by_name(make_trainer, arguments, name):
    if "callback" in arguments:
        arguments = {"callbacks": [getattr(callbacks, arguments["callback"])()]}
    with pytest.raises(BadInput, match=name) as caught:
        make_trainer(elastic.Trainer, **arguments).train()
    assert caught.value.means
    assert caught.value.do


def test_the_end_of_an_epoch_may_be_dropped_if_nothing_is_there(make_trainer):
    trainer = make_trainer(elastic.Trainer, dataloader_drop_last=True, per_device_train_batch_size=2)
    assert trainer.train().global_step == 22


def test_a_training_is_not_repeated_in_one_run(make_trainer):
    trainer = make_trainer(elastic.Trainer)
    trainer.train()
    with pytest.raises(BadInput, match="twice"):
        trainer.train()


def test_a_folder_of_a_checkpoint_does_not_resume_a_run(make_trainer, tmp_path):
    make_trainer(transformers.Trainer, save_strategy="epoch").train()
    folder = tmp_path / "Trainer" / "checkpoint-12"
    for given in (str(folder), True):
        with pytest.raises(BadInput, match=re.escape(str(folder))) as caught:
            make_trainer(elastic.Trainer, output_dir=str(folder.parent)).train(resume_from_checkpoint=given)
        assert f"from_pretrained({str(folder)!r})" in caught.value.do


def test_the_directory_of_a_run_is_resumed_by_the_command(make_trainer, tmp_path):
    (tmp_path / "ledger.jsonl").touch()
    with pytest.raises(BadInput, match="directory of a run") as caught:
        make_trainer(elastic.Trainer).train(resume_from_checkpoint=str(tmp_path))
    assert caught.value.do == f"elastane run --resume {tmp_path}"


@pytest.mark.parametrize(("given", "what"), [("out/checkpoint-4", "not a folder"), (True, "no checkpoint")])
def test_a_missing_folder_is_named(make_trainer, given, what):
    with pytest.raises(BadInput, match=what):
        make_trainer(elastic.Trainer).train(resume_from_checkpoint=given)


def test_a_finished_model_may_be_pushed(make_trainer, monkeypatch):
    pushed = []
    trainer = make_trainer(elastic.Trainer, max_steps=1, hub_model_id="me/model")
    trainer.train()
    monkeypatch.setattr(trainer, "init_hf_repo", lambda **_: setattr(trainer, "hub_model_id", "me/model"))
    hub = SimpleNamespace(upload_folder=lambda **options: pushed.append(options))
    monkeypatch.setattr("transformers.trainer.hf_api", lambda: hub)
    trainer.push_to_hub()
    (options,) = pushed
    assert (options["repo_id"], options["folder_path"]) == ("me/model", trainer.args.output_dir)
    assert transformers.AutoModelForCausalLM.from_pretrained(trainer.args.output_dir)
    trainer._is_zero = False
    assert trainer.push_to_hub() is None
    assert len(pushed) == 1


def test_a_search_is_refused(make_trainer):
    with pytest.raises(BadInput, match="hyperparameter_search"):
        make_trainer(elastic.Trainer).hyperparameter_search(n_trials=2)


def test_a_subclass_with_a_loop_of_its_own_is_refused(make_trainer):
    mine = type("Mine", (elastic.Trainer,), {"get_batch_samples": lambda *_: ([], None)})
    with pytest.raises(BadInput, match="get_batch_samples"):
        make_trainer(mine)


def test_a_sampler_with_batches_of_other_sizes_is_refused(make_trainer):
    def get_train_dataloader(self):
        batches = [[0, 1], [2, 3, 4], [5]]
        return torch.utils.data.DataLoader(self.train_dataset, batch_sampler=batches)

    mine = type("Mine", (elastic.Trainer,), {"get_train_dataloader": get_train_dataloader})
    with pytest.raises(BadInput, match="other sizes"):
        make_trainer(mine).train()


def test_a_trainer_of_someone_else_becomes_elastic_with_a_second_base(make_trainer):
    theirs = type(
        "Theirs",
        (transformers.Trainer,),
        {"log": lambda self, logs, start=None: super(theirs, self).log(logs | {"mine": 1.0}, start)},
    )
    both = type("Both", (theirs, elastic.Trainer), {})
    trainer = make_trainer(both, max_steps=2)
    trainer.train()
    assert all(entry["mine"] == 1.0 for entry in trainer.state.log_history)


@pytest.mark.parametrize(
    ("names", "advice"),
    [
        (["comet_ml", "wandb"], "start the run with: elastane run --log wandb"),
        (["comet_ml"], "--log passes it on to tensorboard, mlflow, wandb"),
    ],
)
def test_only_trackers_that_a_run_knows_are_advised(names, advice):
    from elastane.integrations.transformers.callbacks import describe_reporters

    assert describe_reporters(names).endswith(advice)


@pytest.mark.usefixtures("two_processes")
def test_a_worker_of_several_processes_has_no_trainer(make_trainer):
    with pytest.raises(
        BadInput, match="the Trainer of transformers is not available with --processes"
    ) as error:
        make_trainer(elastic.Trainer)
    assert "fully_shard" in error.value.do
