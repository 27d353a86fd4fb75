"""The speed of one worker of this machine, measured with a small model."""

import time
from typing import Any

import torch

from elastane.integrations.recipes.activations import count_flops
from elastane.integrations.recipes.losses import causal_loss_sum
from elastane.integrations.recipes.model_measures import read_shape

SEQUENCES, CONTEXT, VOCABULARY = 2, 128, 2048
REPETITIONS = 3


def measure_flops(dtype: str) -> float:
    """Return the floating-point operations per second of a small Llama in training, on the device here.

    A worker computes with one thread, so the measurement does, too.

    The plan assumes that the large model computes at this speed. On a GPU a small model does not fill the
    device, so a measured large one, passed to the plan, is better there.

    Args:
        dtype: of the weights.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=CONTEXT,
    )
    model: Any = LlamaForCausalLM(config)
    model.to(device=device, dtype=getattr(torch, dtype)).train()
    tokens = torch.randint(0, VOCABULARY, (SEQUENCES, CONTEXT), device=device)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    times = []
    for _ in range(REPETITIONS + 1):
        start = time.perf_counter()
        loss_sum, _ = causal_loss_sum(model, {"input_ids": tokens, "targets": tokens})
        loss_sum.backward()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    torch.set_num_threads(threads)
    computed = sum(parameter.numel() for parameter in model.parameters()) - VOCABULARY * config.hidden_size
    flops = count_flops(read_shape(config), computed, computed, CONTEXT, recompute=False)
    # The first pass also allocates its memory, and other programs only make a pass slower.
    return flops * SEQUENCES * CONTEXT / min(times[1:])
