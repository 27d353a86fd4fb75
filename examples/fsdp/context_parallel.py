"""A small Llama of which the processes of a worker compute parts of each sequence (context parallelism).

Every process has some positions of the sequences of a microbatch. It gets keys and values of all positions
from the others; FSDP adds the gradients of all parts. Start the training so::

    elastane run --workers 1:2 --processes 2 examples/fsdp/train_context.py
"""

import copy
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed._functional_collectives import all_gather_single_autograd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AttentionInterface, LlamaForCausalLM

from model import CONFIG

PARTS = 2
"""The processes that divide each sequence."""


def attend(
    _module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: torch.Tensor | None,
    *,
    scaling: float,
    group: dist.ProcessGroup,
    **_options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend from the positions of this process to all positions before them."""
    key, value = (all_gather_single_autograd(one.contiguous(), 2, group) for one in (key, value))
    own = query.shape[2]
    first = dist.get_rank(group) * own
    mask = torch.arange(key.shape[2]) <= torch.arange(first, first + own)[:, None]
    attended = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scaling, enable_gqa=True
    )
    return attended.transpose(1, 2).contiguous(), None


def build_context_llama() -> tuple[LlamaForCausalLM, DeviceMesh]:
    """Return the model, and the mesh: different microbatches, then parts of each."""
    dist.init_process_group("gloo")
    shape = (dist.get_world_size() // PARTS, PARTS)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "context"))
    AttentionInterface.register("context", partial(attend, group=mesh["context"].get_group()))
    torch.manual_seed(0)
    config = copy.deepcopy(CONFIG)
    config._attn_implementation, config.use_cache = "context", False
    model = LlamaForCausalLM(config)
    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model), mesh


def compute_loss(model: LlamaForCausalLM, batch: torch.Tensor, context: DeviceMesh) -> torch.Tensor:
    """Return the loss of a microbatch, of which this process computes its positions."""
    positions = torch.arange(batch.shape[1]).chunk(context.size())[context.get_local_rank()]
    logits = model(input_ids=batch[:, positions], position_ids=positions[None]).logits
    following = F.pad(batch[:, 1:], (0, 1), value=-100)[:, positions]
    loss = F.cross_entropy(logits.flatten(0, 1), following.flatten(), reduction="sum")
    return add_parts(loss / batch[:, 1:].numel(), context.get_group())


def add_parts(loss: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Return a loss with the value of all parts and the gradient of this one: FSDP adds the gradients."""
    own = loss.detach()
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, own, group=group)
    return torch.stack(parts).sum() + (loss - own)
