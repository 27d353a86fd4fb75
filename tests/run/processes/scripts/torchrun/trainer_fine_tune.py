"""A fine-tuning with the Trainer of ``transformers``, which resumes from its newest checkpoint."""

import os
import sys
from pathlib import Path

import torch
from journal import Journal
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

folder = Path(sys.argv[1])
journal = Journal(folder)


class Record(TrainerCallback):
    """Writes each step into the journal; a step can be held before its checkpoint."""

    def on_train_begin(self, args, state, control, **others):
        journal.note(f"start {os.environ['RANK']}/{args.world_size} from {state.global_step}")

    def on_step_end(self, args, state, control, **others):
        step = state.global_step - 1
        journal.wait_at(step)
        if state.is_world_process_zero:
            journal.note(f"step {step} of {args.world_size}")


set_seed(3)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
)
tokens = (torch.randint(64, (64, 1)) + torch.arange(12)) % 64
arguments = TrainingArguments(
    output_dir=str(folder / "out"),
    max_steps=8,
    per_device_train_batch_size=4,
    learning_rate=1e-2,
    save_steps=2,
    logging_steps=1,
    use_cpu=True,
    report_to="none",
    disable_tqdm=True,
)
trainer = Trainer(
    model=model,
    args=arguments,
    train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
    callbacks=[Record()],
)
trainer.train(
    resume_from_checkpoint=get_last_checkpoint(folder / "out") if (folder / "out").is_dir() else None
)
trainer.save_model()
