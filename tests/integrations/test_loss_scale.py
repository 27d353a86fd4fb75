"""A Trainer's losses and gradients do not depend on the number of virtual ranks that share a batch."""

from fractions import Fraction

import pytest
import torch
from torch.nn import functional

from tests.lazy_modules import LazyModule

from .conftest import read_history, read_norms, read_weights

elastic = LazyModule("elastane.integrations.transformers")
training_plan = LazyModule("elastane.integrations.transformers.training_plan")
transformers = LazyModule("transformers")
pytestmark = pytest.mark.usefixtures("libraries")

TOKENS = 12
BERT = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
LLAMA = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2}


def make_samples(labels_of, count=22):
    generator = torch.Generator().manual_seed(0)
    samples = [torch.randint(1, 64, (TOKENS,), generator=generator) for _ in range(count)]
    return [
        {"input_ids": tokens, "labels": labels_of(number, tokens)} for number, tokens in enumerate(samples)
    ]


def label_whole_sample(_number, tokens):
    return tokens[0] % 2


def label_every_token(_number, tokens):
    return tokens.clone()


def label_few_samples(number, tokens):
    return tokens.clone() if number % 2 else torch.full_like(tokens, -100)


def make_classifier():
    return transformers.BertForSequenceClassification(transformers.BertConfig(**BERT))


def make_language_model():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, **HEADS))


def make_mixture_of_experts():
    """Make a model with a loss of two terms, of which only the first is divided by the number of items."""
    config = transformers.MixtralConfig(
        **LLAMA, **HEADS, num_local_experts=2, output_router_logits=True, router_aux_loss_coef=0.5
    )
    return transformers.MixtralForCausalLM(config)


class WithoutOptions(torch.nn.Module):
    """A classifier that takes no arguments of the loss, so that the Trainer divides by the batches."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(64, 8), torch.nn.Linear(8, 2)

    def forward(self, input_ids, labels):
        logits = self.head(self.embedding(input_ids).mean(1))
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def average(outputs, labels, num_items_in_batch=None):
    return functional.cross_entropy(outputs["logits"], labels)


def divide_by_items(outputs, labels, num_items_in_batch=None):
    return functional.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch


class Divides:
    """A Trainer with a ``compute_loss`` that divides by the batches of a step itself."""

    loss_is_scaled_for_ga = True

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        loss = functional.cross_entropy(outputs["logits"], inputs["labels"])
        loss = loss / self.args.gradient_accumulation_steps
        return (loss, outputs) if return_outputs else loss


KINDS = {
    "uses-items": (make_language_model, label_every_token, {}),
    "ignores-items": (make_classifier, label_whole_sample, {}),
    "uses-items-in-one-term": (make_mixture_of_experts, label_every_token, {}),
    "first-samples-without-items": (make_language_model, label_few_samples, {}),
    "takes-no-items": (WithoutOptions, label_whole_sample, {}),
    "function-that-averages": (make_classifier, label_whole_sample, {"compute_loss_func": average}),
    "function-that-divides": (make_classifier, label_whole_sample, {"compute_loss_func": divide_by_items}),
    "method-that-divides": (WithoutOptions, label_whole_sample, {"mixins": [Divides]}),
    "smoothed-tokens": (make_language_model, label_every_token, {"label_smoothing_factor": 0.1}),
    "smoothed-samples": (make_classifier, label_whole_sample, {"label_smoothing_factor": 0.1}),
}


@pytest.fixture
def train(tmp_path, choose_virtual_ranks):
    """Return a function that trains with one class of Trainer, ours in a number of virtual ranks."""

    def train(trainer_class, kind, virtual_ranks=None, **arguments):
        make_model, labels_of, options = KINDS[kind]
        choose_virtual_ranks(virtual_ranks)
        options = dict(options)
        trainer_class = type("Tried", (*options.pop("mixins", ()), trainer_class), {})
        compute_loss_func = options.pop("compute_loss_func", None)
        transformers.set_seed(3)
        common = {
            "output_dir": str(tmp_path),
            "per_device_train_batch_size": 8,
            "num_train_epochs": 2,
            "learning_rate": 1e-2,
            "optim": "sgd",
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "use_cpu": True,
            "disable_tqdm": True,
        }
        trainer = trainer_class(
            model=make_model(),
            args=transformers.TrainingArguments(**(common | options | arguments)),
            train_dataset=make_samples(labels_of),
            compute_loss_func=compute_loss_func,
        )
        trainer.train()
        return trainer

    return train


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_gradients_are_those_of_whole_batches(train, kind, accumulation):
    options = {"gradient_accumulation_steps": accumulation}
    theirs = train(transformers.Trainer, kind, **options)
    ours = train(elastic.Trainer, kind, virtual_ranks=8, **options)
    tolerance = 2e-2 if "experts" in KINDS[kind][0].__name__ else 1e-4
    assert read_norms(ours) == pytest.approx(read_norms(theirs), rel=tolerance)
    for expected, found in zip(read_history(theirs), read_history(ours), strict=True):
        assert found == pytest.approx(expected, rel=tolerance)
    weights = read_weights(theirs)
    for name, tensor in read_weights(ours).items():
        assert torch.allclose(tensor, weights[name], atol=tolerance / 10), name


@pytest.mark.parametrize("kind", ["uses-items", "ignores-items"])
def test_the_loss_is_measured_only_if_batches_are_cut(train, kind):
    assert train(elastic.Trainer, kind, virtual_ranks=1, max_steps=1).divides_loss is None
    assert train(elastic.Trainer, kind, virtual_ranks=4, max_steps=1).divides_loss is (kind == "uses-items")


def test_random_numbers_and_data_are_as_without_the_measurement(train):
    drawn = []

    class Recorder(elastic.Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            drawn.append((torch.rand(()).item(), inputs["input_ids"].sum().item()))
            inputs["input_ids"] = inputs["input_ids"] * 0
            return super().training_step(model, inputs, num_items_in_batch)

    train(Recorder, "ignores-items", virtual_ranks=4, max_steps=1)
    tried, rehearsed, computed = drawn[:2], drawn[2:5], drawn[5:]
    assert tried[0] == tried[1]
    assert rehearsed == [computed[0], computed[1], computed[0]]
    assert len(computed) == 4


@pytest.mark.parametrize(
    ("virtual_ranks", "shares"),
    [
        (2, [[Fraction(1), Fraction(1)], [Fraction(1)]]),
        (4, [[Fraction(1, 2)] * 4, [Fraction(2, 3), Fraction(1, 3)]]),
        (1, [[Fraction(2)], [Fraction(1)]]),
    ],
)
def test_shares_of_a_step_add_up_to_its_batches(virtual_ranks, shares):
    plan = training_plan.TrainingPlan(
        samples=11, batch=4, accumulation=2, virtual_ranks=virtual_ranks, steps=2
    )
    for step, expected in enumerate(shares, 1):
        found = [plan.compute_share(step, rank) for rank in range(len(expected))]
        assert found == expected
        assert sum(found) == plan.count_batches(step)


@pytest.mark.parametrize(
    ("share", "divided", "scale"),
    [
        (Fraction(1), True, (2, 1)),
        (Fraction(1, 4), True, (8, 1)),
        (Fraction(1), False, (2, 1)),
        (Fraction(1, 4), False, (2, 4)),
        (Fraction(2), False, (2, 0.5)),
    ],
)
def test_a_scale_divides_what_the_loss_does_not_divide(share, divided, scale):
    found = training_plan.choose_scale(2, share, divided=divided)
    assert (found.accumulation, found.divisor) == scale
