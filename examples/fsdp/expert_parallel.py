"""A small mixture of experts, which the processes of a worker divide (expert parallelism).

Every process computes some sequences of each microbatch and has some of the experts. Tokens travel to their
expert and back; FSDP divides everything else. Start the training so::

    elastane run --workers 1:2 --processes 2 examples/fsdp/train_experts.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from context_parallel import add_parts
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

VOCABULARY, WIDTH, INNER, EXPERTS, LAYERS = 97, 48, 80, 4, 2
PARTS = 2
"""The processes that divide the experts, and the sequences of a microbatch."""


class Experts(nn.Module):
    """The weights of the experts of a layer; this process has some of them."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        up, down = (torch.randn(EXPERTS, *shape) / 8 for shape in ((WIDTH, INNER), (INNER, WIDTH)))
        self.up = nn.Parameter(distribute_tensor(up, mesh, [Shard(0)]))
        self.down = nn.Parameter(distribute_tensor(down, mesh, [Shard(0)]))

    def forward(self, tokens: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the output of each token's expert, of those of this process."""
        assert isinstance(self.up, DTensor)
        assert isinstance(self.down, DTensor)
        outputs = torch.zeros_like(tokens)
        for number, (up, down) in enumerate(zip(self.up.to_local(), self.down.to_local(), strict=True)):
            rows = (numbers == number).nonzero().flatten()
            outputs = outputs.index_copy(0, rows, F.silu(tokens[rows] @ up) @ down)
        return outputs


class Layer(nn.Module):
    """A router, and its experts."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = Experts(mesh)
        self._group = mesh.get_group()

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        """Send each token to the process with its expert, and add what comes back."""
        tokens = self.norm(stream).flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        # Row p: how many tokens this process has for each expert of process p, and gets from p for its own.
        sent = torch.bincount(chosen, minlength=EXPERTS).view(PARTS, -1)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self._group)
        there, here = sent.sum(1).tolist(), received.sum(1).tolist()
        arrived = all_to_all_single_autograd(tokens[order], here, there, self._group)
        numbers = torch.arange(EXPERTS // PARTS).repeat(PARTS).repeat_interleave(received.flatten())
        returned = all_to_all_single_autograd(self.experts(arrived, numbers), there, here, self._group)
        outputs = torch.zeros_like(tokens).index_copy(0, order, returned) * weights[:, None]
        return stream + outputs.view_as(stream)


def build_experts() -> tuple[nn.Sequential, DeviceMesh]:
    """Return the model, and the mesh: different microbatches, then parts of each."""
    dist.init_process_group("gloo")
    shape = (dist.get_world_size() // PARTS, PARTS)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "expert"))
    torch.manual_seed(0)
    layers = [Layer(mesh["expert"]) for _ in range(LAYERS)]
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *layers, nn.Linear(WIDTH, VOCABULARY))
    for layer in layers:
        # The gradient of an expert has the tokens of all parts already.
        fully_shard(layer.experts, mesh=mesh["data"])
        fully_shard(layer)
    return fully_shard(model), mesh


def compute_loss(model: nn.Module, batch: torch.Tensor, parts: DeviceMesh) -> torch.Tensor:
    """Return the loss of a microbatch, of which this process computes its sequences."""
    own = batch.chunk(parts.size())[parts.get_local_rank()]
    logits = model(own[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), own[:, 1:].flatten(), reduction="sum")
    return add_parts(loss / batch[:, 1:].numel(), parts.get_group())
