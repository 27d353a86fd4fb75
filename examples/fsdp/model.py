"""A small Llama, divided among the processes of a worker, and a text of random tokens.

Start the training without Elastane, or with it; by FSDP2 over all processes, or with tensor parallelism over
pairs of them::

    torchrun --nproc-per-node 2 examples/fsdp/torchrun.py
    elastane run --workers 1:2 --processes 2 examples/fsdp/train.py

    torchrun --nproc-per-node 4 examples/fsdp/torchrun_tensor.py
    elastane run --workers 1:2 --processes 4 examples/fsdp/train_tensor.py
"""

import os

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import LlamaConfig, LlamaForCausalLM

TENSOR = 2
"""The processes that divide each matrix."""
PLAN = {
    **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
    "self_attn.o_proj": RowwiseParallel(),
    "mlp.gate_proj": ColwiseParallel(),
    "mlp.up_proj": ColwiseParallel(),
    "mlp.down_proj": RowwiseParallel(),
}

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


def build_tensor_llama() -> tuple[LlamaForCausalLM, DeviceMesh]:
    """Return the model with tensor parallelism inside FSDP, and the dimension of the mesh with the data."""
    torch.distributed.init_process_group("gloo")
    shape = (torch.distributed.get_world_size() // TENSOR, TENSOR)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG)
    for layer in model.model.layers:
        parallelize_module(layer, mesh["tensor"], PLAN)
        fully_shard(layer, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    return model, mesh["data"]


def make_tokens(sequences: int = 64, length: int = 32) -> list[torch.Tensor]:
    """Return sequences of tokens."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, CONFIG.vocab_size, (length,), generator=generator) for _ in range(sequences)]
