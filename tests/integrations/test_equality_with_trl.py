"""On one worker our SFTTrainer and DPOTrainer give the losses, metrics and weights of those of ``trl``."""

from importlib import import_module

import pytest

from elastane.common.errors import BadInput
from tests.lazy_modules import LazyModule

from .conftest import assert_equal_training, read_norms

datasets = LazyModule("datasets")
peft = LazyModule("peft")
tokenizers = LazyModule("tokenizers")
transformers = LazyModule("transformers")
trl = LazyModule("trl")
pytestmark = pytest.mark.usefixtures("libraries")

THEIRS, OURS = "trl", "elastane.integrations.trl"
COUNT = 14
PROMPTS = [f"{number}+{number}=" for number in range(COUNT)]
COLUMNS = {
    "SFT": {"prompt": PROMPTS, "completion": [f"{2 * number} ok" for number in range(COUNT)]},
    "DPO": {
        "prompt": PROMPTS,
        "chosen": [f"{2 * number} ok" for number in range(COUNT)],
        "rejected": [f"{3 * number} no" for number in range(COUNT)],
    },
}


@pytest.fixture(scope="session")
def libraries():
    """Import the libraries before `frozen_heap`, so that no run looks through their objects."""
    import_module("elastane.integrations.trl")


@pytest.fixture(autouse=True)
def quiet_libraries_of_trl(monkeypatch):
    monkeypatch.setenv("CI", "1")  # no telemetry
    datasets.disable_progress_bars()


@pytest.fixture
def train(tmp_path):
    """Return a function that trains with the trainer of a module for a task, and returns the trainer."""

    def train(module, task, *, lora=False, **arguments):
        common = {
            "output_dir": str(tmp_path / module),
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "num_train_epochs": 1,
            "learning_rate": 1e-2,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
        }
        data = datasets.Dataset.from_dict(COLUMNS[task])
        reference = {"ref_model": make_model()} if task == "DPO" and not lora else {}
        trainer = getattr(import_module(module), f"{task}Trainer")(
            model=make_model(),
            args=getattr(trl, f"{task}Config")(**(common | arguments)),
            train_dataset=data,
            eval_dataset=data.select(range(6)),
            processing_class=make_tokenizer(),
            peft_config=make_adapter() if lora else None,
            **reference,
        )
        trainer.train()
        return trainer

    return train


def make_adapter():
    return peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"])


def make_model():
    transformers.set_seed(3)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    config = transformers.LlamaConfig(vocab_size=97, max_position_embeddings=64, **sizes, **special)
    return transformers.LlamaForCausalLM(config)


def make_tokenizer():
    vocabulary = {text: number for number, text in enumerate(["<pad>", "<eos>", *map(chr, range(32, 127))])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    special = dict(zip(("pad_token", "eos_token"), vocabulary, strict=False))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("task", ["SFT", "DPO"])
def test_losses_metrics_and_weights_are_equal(train, task, lora):
    options = {"lora": lora, "eval_strategy": "steps", "eval_steps": 2}
    assert_equal_training(train(THEIRS, task, **options), train(OURS, task, **options))


@pytest.mark.parametrize("task", ["SFT", "DPO"])
def test_the_precision_and_recomputation_that_trl_chooses_are_equal(train, task):
    options = {"lora": True, "bf16": None, "gradient_checkpointing": True}
    assert_equal_training(train(THEIRS, task, **options), train(OURS, task, **options))


def test_packed_samples_are_equal(train):
    options = {"packing": True, "max_length": 32, "padding_free": False}
    assert_equal_training(train(THEIRS, "SFT", **options), train(OURS, "SFT", **options))


@pytest.mark.parametrize("task", ["SFT", "DPO"])
def test_losses_are_those_of_whole_batches_if_virtual_ranks_cut_them(train, choose_virtual_ranks, task):
    theirs = train(THEIRS, task, optim="sgd")
    choose_virtual_ranks(4)
    ours = train(OURS, task, optim="sgd")
    losses = [
        [entry["loss"] for entry in each.state.log_history if "loss" in entry] for each in (theirs, ours)
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert read_norms(ours) == pytest.approx(read_norms(theirs), rel=1e-3)


def test_a_reference_model_that_changes_is_refused(train):
    with pytest.raises(BadInput, match="sync_ref_model"):
        train(OURS, "DPO", sync_ref_model=True, ref_model_sync_steps=1)
