"""A fine-tuning with the trainers of ``transformers`` and ``trl``, as their users write it."""

import argparse
import os
import warnings
from pathlib import Path

import faults
import torch
from datasets import Dataset, disable_progress_bars
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    EarlyStoppingCallback,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import get_last_checkpoint

from elastane.integrations.transformers import Trainer
from elastane.run.worker import worker_settings

VARIANTS = {
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "recomputed": {"activation_checkpointing": True},
    "reentrant": {
        "bf16": True,
        "activation_checkpointing": True,
        "activation_checkpointing_kwargs": {"use_reentrant": True},
    },
}
KINDS = ("trainer", "averaged", "lora", "metrics", "sft", "dpo", "sft-lora", *VARIANTS)

parser = argparse.ArgumentParser()
parser.add_argument("--kind", choices=KINDS, default="trainer")
parser.add_argument("--paced-from", type=int, default=1 << 30)
parser.add_argument("--fault", action="append", default=[], help="WORKER:STEP:MOMENT[:SIGNAL]")
parser.add_argument(
    "--die-in-save", action="store_true", help="the first worker that writes a checkpoint is killed meanwhile"
)
parser.add_argument("--count", action="store_true", help="callbacks count the steps")
parser.add_argument(
    "--resume-newest", action="store_true", help="pass the newest checkpoint, if there is one"
)
parser.add_argument("--stop-early", action="store_true")
parser.add_argument("--save-only-model", action="store_true")
options = parser.parse_args()

os.environ["CI"] = "1"  # trl sends nothing
warnings.simplefilter("ignore")
disable_progress_bars()
settings = worker_settings.get_settings()
faults.record_work()
for fault in options.fault:
    faults.arm(fault)
faults.pace(options.paced_from)


def make_tokenizer():
    vocabulary = {text: number for number, text in enumerate(["<pad>", "<eos>", *map(chr, range(32, 127))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    special = dict(zip(("pad_token", "eos_token"), vocabulary, strict=False))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def make_model():
    set_seed(3)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=97,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            attention_dropout=0.1,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=1,
        )
    )


def make_samples(count):
    generator = torch.Generator().manual_seed(0)
    samples = []
    for number in range(count):
        tokens = torch.randint(2, 97, (12,), generator=generator)
        labels = tokens.clone()
        labels[: number % 5] = -100
        samples.append({"input_ids": tokens, "labels": labels})
    return samples


def average(outputs, labels, num_items_in_batch):
    return torch.nn.functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def compute_accuracy(predictions):
    right = predictions.predictions.argmax(-1)[:, :-1] == predictions.label_ids[:, 1:]
    return {"accuracy": right.mean()}


class Counter(TrainerCallback):
    """Counts steps, in each worker for itself."""

    def __init__(self):
        self.count = 0

    def on_step_end(self, *_args, **_options):
        self.count += 1


class SentCounter(Counter, ExportableState):
    """Counts steps, and a worker that joins goes on from the count of the others."""

    def state(self):
        return {"args": {}, "attributes": {"count": self.count}}


arguments = {
    "output_dir": str(settings.run_dir.root / "out"),
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "num_train_epochs": 3,
    "learning_rate": 1e-2,
    "warmup_steps": 2,
    "lr_scheduler_type": "cosine",
    "max_grad_norm": 0.5,
    "logging_steps": 2,
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "save_only_model": options.save_only_model,
    "save_total_limit": 2,
    "load_best_model_at_end": True,
    "metric_for_best_model": "loss",
    "per_device_eval_batch_size": 3,
    "report_to": "none",
    "use_cpu": True,
}
lora = LoraConfig(task_type="CAUSAL_LM", r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])
callbacks = [EarlyStoppingCallback(1, 100.0)] if options.stop_early else []
if options.count:
    callbacks += [Counter(), SentCounter()]
arguments |= VARIANTS.get(options.kind, {})
if options.kind in ("trainer", "averaged", "lora", "metrics", *VARIANTS):
    model = make_model()
    trainer = Trainer(
        model=get_peft_model(model, lora) if options.kind == "lora" else model,
        args=TrainingArguments(**arguments),
        train_dataset=make_samples(22),
        eval_dataset=make_samples(10),
        callbacks=callbacks,
        compute_loss_func=average if options.kind == "averaged" else None,
        compute_metrics=compute_accuracy if options.kind == "metrics" else None,
    )
else:
    import trl

    from elastane.integrations.trl import DPOTrainer, SFTTrainer

    arguments |= {"bf16": False, "gradient_checkpointing": False}
    columns = {
        "prompt": [f"{number}+{number}=" for number in range(22)],
        "sft": {"completion": [f"{2 * number} ok" for number in range(22)]},
        "dpo": {
            "chosen": [f"{2 * number} ok" for number in range(22)],
            "rejected": [f"{3 * number} no" for number in range(22)],
        },
    }
    data = Dataset.from_dict({"prompt": columns["prompt"], **columns[options.kind[:3]]})
    common = {
        "train_dataset": data,
        "eval_dataset": data.select(range(10)),
        "processing_class": make_tokenizer(),
    }
    if options.kind == "dpo":
        trainer = DPOTrainer(
            model=make_model(), ref_model=make_model(), args=trl.DPOConfig(**arguments), **common
        )
    else:
        peft = lora if options.kind == "sft-lora" else None
        trainer = SFTTrainer(make_model(), args=trl.SFTConfig(**arguments), peft_config=peft, **common)

if options.die_in_save:
    write = trainer._write_checkpoint

    def die_once(folder):
        write(folder)
        try:
            (settings.run_dir.root / "died-in-save").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), 9)

    trainer._write_checkpoint = die_once
output = trainer.args.output_dir
newest = get_last_checkpoint(output) if options.resume_newest and Path(output).is_dir() else None
trainer.train(resume_from_checkpoint=newest)
trainer.save_model(str(settings.run_dir.root / "final"))
