"""A small Llama, divided by FSDP2 among the processes of a worker, and a text of random tokens.

Start the training without Elastane, or with it::

    torchrun --nproc-per-node 2 examples/fsdp/torchrun.py
    elastane run --workers 1:2 --processes 2 examples/fsdp/train.py
"""

import os

import torch
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

CONFIG = LlamaConfig(
    vocab_size=97,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)


def build_llama() -> LlamaForCausalLM:
    """Return the model; with several processes every layer is a unit that FSDP gathers when it is needed."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG)
    if "WORLD_SIZE" in os.environ:
        torch.distributed.init_process_group("gloo")
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
    return model


def make_tokens(sequences: int = 64, length: int = 32) -> list[torch.Tensor]:
    """Return sequences of tokens."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, CONFIG.vocab_size, (length,), generator=generator) for _ in range(sequences)]
