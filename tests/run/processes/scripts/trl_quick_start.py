"""The quick starts of ``trl`` for supervised fine-tuning and preference tuning, each with one changed import.

Model and data are local, ``output_dir`` is in the run directory, and a CPU needs ``use_cpu``.
"""

import os
import sys
import warnings
from pathlib import Path

import faults

from elastane.run.worker import worker_settings

folder, task, kind = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
os.environ["CI"] = "1"  # trl sends nothing
warnings.simplefilter("ignore")
faults.record_work()
faults.pace(int(sys.argv[4]) if len(sys.argv) > 4 else 1 << 30)
place = {"output_dir": str(worker_settings.get_settings().run_dir.root / "out"), "use_cpu": True}

cache = str(folder / "cache")

if task == "sft":
    from datasets import load_dataset
    from peft import LoraConfig
    from trl import SFTConfig

    from elastane.integrations.trl import SFTTrainer

    trainer = SFTTrainer(
        model=str(folder / "model"),
        args=SFTConfig(**place),
        train_dataset=load_dataset(
            "json", data_files=str(folder / "conversations.jsonl"), split="train", cache_dir=cache
        ),
        peft_config=LoraConfig() if kind == "lora" else None,
    )
    trainer.train()
else:
    from datasets import load_dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig

    from elastane.integrations.trl import DPOTrainer

    trainer = DPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder / "model"),
        args=DPOConfig(**place),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        train_dataset=load_dataset(
            "json", data_files=str(folder / "pairs.jsonl"), split="train", cache_dir=cache
        ),
        peft_config=LoraConfig() if kind == "lora" else None,
    )
    trainer.train()
