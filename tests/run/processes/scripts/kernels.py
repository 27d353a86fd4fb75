"""Prints the digests of what small models and optimizers compute on this CPU, by name, as JSON.

``--numerics portable`` prepares the process as a worker with portable numerics; its environment must fit.
"""

import json
import sys
from collections.abc import Callable, Iterable

import torch
import xxhash
from torch import nn
from torch.nn import functional

from elastane.run.worker.state.square_root import replace_square_root

Tensors = Iterable[torch.Tensor]


def digest(tensors: Tensors) -> str:
    found = xxhash.xxh3_64()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def train(model: nn.Module, *inputs: torch.Tensor) -> Tensors:
    """Return the loss of a model and all gradients."""
    for tensor in inputs:
        tensor.requires_grad_(tensor.is_floating_point())
    loss = model(*inputs).float().pow(2).mean()
    loss.backward()
    return [loss, *(value.grad for value in (*model.parameters(), *inputs) if value.grad is not None)]


def cast(model: nn.Module, *inputs: torch.Tensor) -> Tensors:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return train(model, *inputs)


def step(kind: type[torch.optim.Optimizer]) -> Tensors:
    """Return a parameter after three steps of the optimizer."""
    parameter = nn.Parameter(torch.randn(1003))
    optimizer = kind([parameter], lr=1e-2)
    for _ in range(3):
        parameter.grad = torch.randn(1003)
        optimizer.step()
    return [parameter]


def differentiate(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> Tensors:
    """Return the results of a function and the gradients of its inputs."""
    for tensor in inputs:
        tensor.requires_grad_()
    result = function(*inputs)
    result.pow(2).mean().backward()
    return [result, *(tensor.grad for tensor in inputs if tensor.grad is not None)]


def attend(*heads: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(*heads, is_causal=True)


def build_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True)


draw = torch.randn
MODELS: dict[str, Callable[[], Tensors]] = {
    "linear": lambda: train(nn.Linear(64, 48), draw(32, 64)),
    "perceptron": lambda: train(nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 8)), draw(16, 64)),
    "convolution": lambda: train(nn.Conv2d(3, 16, 3), draw(4, 3, 16, 16)),
    "deeper convolution": lambda: train(nn.Conv2d(64, 64, 3, padding=1), draw(2, 64, 7, 7)),
    "depthwise convolution": lambda: train(nn.Conv2d(16, 16, 3, groups=16), draw(4, 16, 8, 8)),
    "layer norm": lambda: train(nn.LayerNorm(96), draw(33, 96)),
    "batch norm": lambda: train(nn.BatchNorm2d(16), draw(4, 16, 8, 8)),
    "group norm": lambda: train(nn.GroupNorm(4, 16), draw(4, 16, 8, 8)),
    "embedding": lambda: train(nn.Embedding(50, 24), torch.randint(0, 50, (8, 16))),
    "gru": lambda: differentiate(lambda x: nn.GRU(16, 24, batch_first=True)(x)[0], draw(4, 7, 16)),
    "transformer": lambda: train(build_layer(), draw(4, 9, 32)),
    "attention": lambda: differentiate(attend, draw(2, 4, 33, 16), draw(2, 4, 33, 16), draw(2, 4, 33, 16)),
    "bf16 linear": lambda: cast(nn.Linear(64, 48), draw(32, 64)),
    "bf16 convolution": lambda: cast(nn.Conv2d(3, 16, 3), draw(4, 3, 16, 16)),
    "bf16 transformer": lambda: cast(build_layer(), draw(4, 9, 32)),
    "sum": lambda: differentiate(torch.sum, draw(10007)),
    "variance": lambda: differentiate(torch.var, draw(10007)),
    "norm": lambda: differentiate(torch.linalg.vector_norm, draw(10007)),
    "softmax": lambda: differentiate(lambda x: functional.log_softmax(x, -1), draw(17, 65)),
}
FUNCTIONS = ("exp", "erf", "log1p", "sigmoid", "sin", "sqrt", "tanh", "rsqrt")
ACTIVATIONS = ("gelu", "silu", "relu", "softplus")
OPTIMIZERS = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad")


def main() -> None:
    torch.set_num_threads(1)
    if "portable" in sys.argv:
        replace_square_root()
    work = dict(MODELS)
    for name in FUNCTIONS:
        work[name] = lambda name=name: differentiate(getattr(torch, name), torch.rand(1003))
    for name in ACTIVATIONS:
        work[name] = lambda name=name: differentiate(getattr(functional, name), draw(1003))
    for name in OPTIMIZERS:
        work[name] = lambda name=name: step(getattr(torch.optim, name))
    digests = {}
    for name, compute in work.items():
        torch.manual_seed(0)
        digests[name] = digest(compute())
    sys.stdout.write(json.dumps(digests))


if __name__ == "__main__":
    main()
