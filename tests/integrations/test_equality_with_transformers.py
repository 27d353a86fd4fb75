"""On one worker our Trainer gives the losses and weights of ``transformers.Trainer``, to the last digit."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from torch.nn import functional
from transformers import EarlyStoppingCallback, TrainerCallback

from elastane.integrations.transformers import Trainer

from .conftest import assert_equal_training, make_samples, read_weights


def train_both(make_trainer, theirs=transformers.Trainer, ours=Trainer, **options):
    """Train with each class, and return both Trainers and what ``train`` returned."""
    trainers = [make_trainer(each, **options) for each in (theirs, ours)]
    outputs = [trainer.train() for trainer in trainers]
    assert outputs[0].training_loss == outputs[1].training_loss
    assert outputs[0].global_step == outputs[1].global_step
    assert_equal_training(*trainers)
    return trainers


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"warmup_steps": 2, "lr_scheduler_type": "cosine", "max_grad_norm": 0.3, "weight_decay": 0.1},
        {"max_grad_norm": 0.0, "optim": "sgd", "train_sampling_strategy": "sequential"},
        {"label_smoothing_factor": 0.1, "average_tokens_across_devices": False, "data_seed": 7},
        {
            "max_steps": 7,
            "include_num_input_tokens_seen": "all",
            "logging_steps": 3,
            "logging_first_step": True,
        },
        {"bf16": True},
        {"fp16": True},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
        {"bf16": True, "activation_checkpointing": True},
        {"bf16_full_eval": True, "eval_strategy": "epoch"},
    ],
    ids=lambda arguments: "-".join(arguments) or "defaults",
)
def test_losses_and_weights_are_equal(make_trainer, arguments, accumulation):
    train_both(make_trainer, gradient_accumulation_steps=accumulation, **arguments)


def test_evaluations_and_the_choice_of_the_best_model_are_equal(make_trainer):
    theirs, ours = train_both(
        make_trainer,
        eval_strategy="epoch",
        save_strategy="epoch",
        eval_on_start=True,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        greater_is_better=True,  # the first model is the best one
        save_total_limit=1,
        per_device_eval_batch_size=4,
    )
    assert ours.state.best_metric == theirs.state.best_metric
    names = [Path(trainer.state.best_model_checkpoint).name for trainer in (theirs, ours)]
    assert names == ["checkpoint-6", "checkpoint-6"]
    folders = [
        {path.name for path in Path(trainer.args.output_dir).glob("checkpoint-*")}
        for trainer in (theirs, ours)
    ]
    assert folders[0] == folders[1]


def compute_accuracy(predictions):
    right = predictions.predictions.argmax(-1)[:, :-1] == predictions.label_ids[:, 1:]
    return {"accuracy": right.mean(), "shape": float(predictions.predictions.shape[0])}


def test_metrics_of_predictions_are_equal(make_trainer):
    _, ours = train_both(make_trainer, eval_strategy="epoch", compute_metrics=compute_accuracy)
    found = [entry["eval_accuracy"] for entry in ours.state.log_history if "eval_accuracy" in entry]
    assert len(found) == 2
    samples = make_samples(10)
    assert ours.evaluate(samples)["eval_accuracy"] == found[-1]
    assert ours.predict(samples).predictions.shape[0] == 10


def test_a_callback_may_stop_the_training(make_trainer):
    theirs, ours = train_both(
        make_trainer,
        callbacks=[EarlyStoppingCallback(1, 100.0)],
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        load_best_model_at_end=True,
    )
    assert ours.state.global_step == theirs.state.global_step == 4


class Recorder(TrainerCallback):
    """Records which events a callback sees, with the step."""

    def __init__(self):
        self.seen = []

    def __getattribute__(self, name):
        if name.startswith("on_") and name != "on_pre_optimizer_step":
            return lambda args, state, control, **_: self.seen.append((name, state.global_step))
        return super().__getattribute__(name)


def test_callbacks_see_the_same_events(make_trainer):
    recorders = []
    for trainer_class in (transformers.Trainer, Trainer):
        recorders.append(Recorder())
        make_trainer(
            trainer_class,
            callbacks=recorders[-1:],
            gradient_accumulation_steps=2,
            eval_strategy="epoch",
            save_strategy="epoch",
        ).train()
    # The run has committed a step when the callbacks between its microbatches are called.
    moved = {"on_optimizer_step", "on_substep_end"}
    orders = [[name for name, _ in recorder.seen if name not in moved] for recorder in recorders]
    assert orders[0] == orders[1]
    assert sorted(recorders[0].seen) == sorted(recorders[1].seen)


def test_methods_that_people_override_keep_their_meaning(make_trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        losses = functional.cross_entropy(
            outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"
        )
        loss = losses / (num_items_in_batch if num_items_in_batch is not None else 100)
        return (loss, outputs) if return_outputs else loss

    def create_optimizer(self, model=None):
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        return self.optimizer

    def training_step(self, model, inputs, num_items_in_batch=None):
        inputs["input_ids"] = inputs["input_ids"].flip(0)
        inputs["labels"] = inputs["labels"].flip(0)
        return super(type(self), self).training_step(model, inputs, num_items_in_batch)

    methods = {
        "compute_loss": compute_loss,
        "create_optimizer": create_optimizer,
        "training_step": training_step,
    }
    theirs, ours = (type("Custom", (base,), dict(methods)) for base in (transformers.Trainer, Trainer))
    train_both(make_trainer, theirs, ours, gradient_accumulation_steps=2)


def test_a_folder_of_a_checkpoint_is_that_of_transformers(make_trainer):
    trainers = train_both(make_trainer, save_strategy="steps", save_steps=4)
    folders = [Path(trainer.args.output_dir) / "checkpoint-4" for trainer in trainers]
    files = [{path.name for path in folder.iterdir() if not path.name.startswith(".")} for folder in folders]
    assert files[0] == files[1]
    states = [json.loads((folder / "trainer_state.json").read_text()) for folder in folders]
    for state in states:
        state.pop("log_history")
    assert states[0] == states[1]
    moments = [torch.load(folder / "optimizer.pt")["state"] for folder in folders]
    assert all(torch.equal(moments[0][key]["exp_avg"], moments[1][key]["exp_avg"]) for key in moments[0])
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folders[1])
    assert loaded.state_dict().keys() == read_weights(trainers[1]).keys()
    resumed = make_trainer(transformers.Trainer, save_strategy="no")
    resumed.train(resume_from_checkpoint=str(folders[1]))
    assert_equal_weights(resumed, trainers[0])


def assert_equal_weights(one, other):
    expected = read_weights(other)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in read_weights(one).items())
