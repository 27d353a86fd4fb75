"""The Trainer of Elastane beside that of transformers: the same arguments, one process, one thread.

    python benchmarks/transformers_trainer.py [--pairs 7] [--steps 24] [--samples 4]

It trains a small Llama with each of them in turn, compares all losses and weights bit for bit, and prints the
ratio of their speeds: median, lowest and highest of all pairs. A ratio above 1 means that Elastane is faster.
"""

import argparse
import itertools
import json
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import elastane.integrations.transformers
import torch
import transformers
from elastane.run.worker.state.devices import pin_kernels, pin_libraries
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainingArguments

from spread import format_spread

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LENGTH = 128
"""The tokens of a sample."""
WARM = 4
"""Steps before the measurement: they allocate memory, and a run rehearses its first microbatch."""


class StepTimes(TrainerCallback):
    """Notes when each step ends, in time and in the processor time of this process."""

    def __init__(self) -> None:
        self.ends_s: list[float] = []
        self.cpu_ends_s: list[float] = []

    def on_step_end(self, *_args: Any, **_options: Any) -> None:
        self.ends_s.append(time.perf_counter())
        self.cpu_ends_s.append(time.process_time())

    def compute_medians(self) -> tuple[float, float]:
        """Return the median seconds of a step, and its processor seconds."""
        pairs = (
            [after - before for before, after in itertools.pairwise(ends[WARM:])]
            for ends in (self.ends_s, self.cpu_ends_s)
        )
        seconds, cpu_seconds = map(statistics.median, pairs)
        return seconds, cpu_seconds


def train(
    trainer_class: Any, steps: int, accumulation: int, batch_size: int
) -> tuple[tuple[float, float], list[float], list[torch.Tensor]]:
    """Return the medians of a step, the losses and the weights of one training."""
    torch.set_num_threads(1)
    transformers.set_seed(0)
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=256,
    )
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, config.vocab_size, (256, LENGTH), generator=generator)
    samples = [{"input_ids": row, "labels": row} for row in tokens]
    times = StepTimes()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=accumulation,
            max_steps=steps,
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=DEVICE.type == "cpu",
            disable_tqdm=True,
        )
        trainer = trainer_class(model=model, args=arguments, train_dataset=samples, callbacks=[times])
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return times.compute_medians(), losses, [tensor.clone() for tensor in trainer.model.state_dict().values()]


def compare(pairs: int, steps: int, accumulation: int, batch_size: int) -> dict[str, Any]:
    """Train pairs, in alternating order, and return the comparison."""
    classes = (transformers.Trainer, elastane.integrations.transformers.Trainer)
    times: list[tuple[tuple[float, float], tuple[float, float]]] = []
    is_equal = True
    for number in range(pairs):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        found = {which: train(classes[which], steps, accumulation, batch_size) for which in order}
        is_equal = is_equal and found[0][1] == found[1][1]
        is_equal = is_equal and all(map(torch.equal, found[0][2], found[1][2]))
        times.append((found[0][0], found[1][0]))
    return {
        "accumulation": accumulation,
        "tokens_of_a_microbatch": batch_size * LENGTH,
        "pairs": pairs,
        "losses_and_weights_equal": is_equal,
        **{
            name: {
                "theirs_s": [theirs[which] for theirs, _ in times],
                "ours_s": [ours[which] for _, ours in times],
                "speed_ratio": [theirs[which] / ours[which] for theirs, ours in times],
            }
            for which, name in enumerate(("time", "processor_time"))
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=7, help="trainings with each of the two")
    parser.add_argument("--steps", type=int, default=24, help="steps of a training")
    parser.add_argument("--samples", type=int, default=4, help=f"samples of a microbatch, of {LENGTH} tokens")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    # Both compute with the same kernels, those of a run.
    pin_libraries()
    pin_kernels(DEVICE)
    rows = [compare(options.pairs, options.steps, accumulation, options.samples) for accumulation in (1, 2)]
    for row in rows:
        equal = "equal, bit for bit" if row["losses_and_weights_equal"] else "DIFFERENT"
        print(
            f"accumulation {row['accumulation']}, {row['tokens_of_a_microbatch']} tokens per microbatch, "
            f"{row['pairs']} pairs: losses and weights {equal}"
        )
        for name in ("time", "processor_time"):
            found = row[name]
            theirs, ours = (format_spread(found[who], "s", digits=3) for who in ("theirs_s", "ours_s"))
            ratio = format_spread(found["speed_ratio"], digits=3)
            print(
                f"  {name.replace('_', ' ')} of a step: transformers {theirs}, Elastane {ours}; ratio {ratio}"
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
