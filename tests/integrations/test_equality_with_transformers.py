"""On one worker our Trainer gives the losses and weights of ``transformers.Trainer``, to the last digit."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash
from torch.nn import functional

from tests.lazy_modules import LazyModule

from .conftest import assert_equal_training, make_samples, read_weights

callbacks = LazyModule("tests.integrations.callbacks")
elastic = LazyModule("elastane.integrations.transformers")
transformers = LazyModule("transformers")
pytestmark = pytest.mark.usefixtures("libraries")


def train_both(make_trainer, classes=None, **options):
    """Train with each class, theirs and ours, and return both Trainers."""
    classes = classes or (transformers.Trainer, elastic.Trainer)
    trainers = [make_trainer(each, **options) for each in classes]
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


def describe(results):
    """Return nested results with their structure, types and bytes."""
    if isinstance(results, np.ndarray):
        return str(results.dtype), results.shape, results.tobytes().hex()
    if isinstance(results, Mapping):
        return [type(results).__name__, *((name, describe(one)) for name, one in results.items())]
    return [type(results).__name__, *map(describe, results or ())]


def digest_predictions(predictions):
    fields = (predictions.predictions, predictions.label_ids, predictions.losses, predictions.inputs)
    return {"digest": xxhash.xxh3_64_intdigest(repr([describe(field) for field in fields]).encode()) / 2**64}


def pad(samples):
    longest = max(len(sample["input_ids"]) for sample in samples)
    return {
        name: torch.stack(
            [functional.pad(sample[name], (0, longest - len(sample[name])), value=3) for sample in samples]
        )
        for name in ("input_ids", "labels")
    }


def keep_best_token(logits, _labels):
    return logits.argmax(-1)


def return_model_output(self, *args, **options):
    loss, logits, labels = transformers.Trainer.prediction_step(self, *args, **options)
    return loss, transformers.utils.ModelOutput(logits=logits), labels


SAMPLES_OF_ALL_LENGTHS = [
    {name: tensor[: 5 + number % 7] for name, tensor in sample.items()}
    for number, sample in enumerate(make_samples(9))
]


@pytest.mark.parametrize(
    ("options", "overridden"),
    [
        pytest.param({"include_for_metrics": ["inputs", "loss"]}, {}, id="inputs-and-losses"),
        pytest.param({"config": {"output_hidden_states": True}}, {}, id="hidden-states"),
        pytest.param(
            {"eval_accumulation_steps": 1, "config": {"output_attentions": True}}, {}, id="accumulated"
        ),
        pytest.param({"eval_do_concat_batches": False}, {}, id="separate-batches"),
        pytest.param({"more": {"preprocess_logits_for_metrics": keep_best_token}}, {}, id="preprocessed"),
        pytest.param(
            {
                "more": {"eval_dataset": SAMPLES_OF_ALL_LENGTHS, "data_collator": pad},
                "include_for_metrics": ["inputs"],
            },
            {},
            id="padded",
        ),
        pytest.param({"bf16_full_eval": True}, {}, id="bf16"),
        # This cannot be passed from worker to worker, so each worker evaluates everything.
        pytest.param({}, {"prediction_step": return_model_output}, id="objects"),
    ],
)
def test_predictions_have_the_bits_and_the_structure_of_transformers(make_trainer, options, overridden):
    classes = [
        type(each.__name__, (each,), overridden) if overridden else each
        for each in (transformers.Trainer, elastic.Trainer)
    ]
    train_both(
        make_trainer,
        classes,
        compute_metrics=digest_predictions,
        eval_strategy="epoch",
        per_device_eval_batch_size=4,
        **options,
    )


def test_predictions_in_a_callback_are_equal(make_trainer):
    found = []
    for each in (transformers.Trainer, elastic.Trainer):
        predictor = callbacks.Predictor()
        predictor.trainer = make_trainer(each, callbacks=[predictor], per_device_eval_batch_size=4)
        predictor.trainer.train()
        found.append(
            [
                (describe(output.predictions), describe(output.label_ids), output.metrics["test_loss"])
                for output in predictor.outputs
            ]
        )
    assert len(found[0]) == 2
    assert found[0] == found[1]


def test_a_callback_may_stop_the_training(make_trainer):
    theirs, ours = train_both(
        make_trainer,
        callbacks=[transformers.EarlyStoppingCallback(1, 100.0)],
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        load_best_model_at_end=True,
    )
    assert ours.state.global_step == theirs.state.global_step == 4


def test_callbacks_see_the_same_events(make_trainer):
    recorders = []
    for trainer_class in (transformers.Trainer, elastic.Trainer):
        recorders.append(callbacks.Recorder())
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
    classes = [type("Custom", (base,), dict(methods)) for base in (transformers.Trainer, elastic.Trainer)]
    train_both(make_trainer, classes, gradient_accumulation_steps=2)


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
