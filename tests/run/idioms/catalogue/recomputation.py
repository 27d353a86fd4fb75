"""Checkpointing, compilation and parametrisations."""

import copy
from functools import partial

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from elastane import Run

from .registry import register_exact, register_refused
from .samples import CLASSES, TOKENS, VECTORS, WORDS

KINDS = ("reentrant", "not-reentrant")


class Block(nn.Module):
    """A residual block with dropout; a checkpoint must repeat its random numbers."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.inner, self.outer, self.dropout = (
            nn.Linear(width, width),
            nn.Linear(width, width),
            nn.Dropout(0.1),
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.outer(self.dropout(torch.tanh(self.inner(hidden))))


@register_exact("`checkpoint`, reentrant or not", variants=KINDS, shown=True)
def checkpointed(run: Run, kind: str) -> None:
    """Each block computes its activations again in the backward pass."""
    model = nn.ModuleDict({"stem": nn.Linear(6, 16), "head": nn.Linear(16, CLASSES)})
    model["blocks"] = nn.ModuleList([Block(), Block()])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            hidden = model["stem"](inputs)
            for block in model["blocks"]:
                hidden = checkpoint(block, hidden, use_reentrant=kind == "reentrant")
            step.backward(functional.cross_entropy(model["head"](hidden), targets))


@register_exact("`checkpoint_sequential`", variants=KINDS)
def checkpointed_in_segments(run: Run, kind: str) -> None:
    """The backward pass computes segments of a sequence of layers again."""
    model = nn.Sequential(nn.Linear(6, 16), Block(), Block(), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            inputs.requires_grad_()
            logits = checkpoint_sequential(model, 2, inputs, use_reentrant=kind == "reentrant")
            step.backward(functional.cross_entropy(logits, targets))


@register_exact("A checkpoint within a checkpoint", variants=KINDS)
def checkpointed_twice(run: Run, kind: str) -> None:
    """A checkpointed stack of blocks checkpoints each block again."""
    model = nn.ModuleDict({"stem": nn.Linear(6, 16), "head": nn.Linear(16, CLASSES)})
    model["blocks"] = nn.ModuleList([Block(), Block()])
    again = partial(checkpoint, use_reentrant=kind == "reentrant")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)

    def stack(hidden: torch.Tensor) -> torch.Tensor:
        for block in model["blocks"]:
            hidden = again(block, hidden)
        return hidden

    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            hidden = again(stack, model["stem"](inputs))
            step.backward(functional.cross_entropy(model["head"](hidden), targets))


@register_exact("One layer used several times, checkpointed (ALBERT)", variants=KINDS)
def shared_layer_checkpointed(run: Run, kind: str) -> None:
    """The model applies one block three times, each time in its own checkpoint."""
    model = nn.ModuleDict({"stem": nn.Linear(6, 16), "block": Block(), "head": nn.Linear(16, CLASSES)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            hidden = model["stem"](inputs)
            for _ in range(3):
                hidden = checkpoint(model["block"], hidden, use_reentrant=kind == "reentrant")
            step.backward(functional.cross_entropy(model["head"](hidden), targets))


class Tied(nn.Module):
    """Words come in and go out by the same table, once inside a checkpoint and once outside."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.block = nn.Embedding(WORDS, 16), Block()
        self.head = nn.Linear(16, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor, kind: str) -> torch.Tensor:
        def rest(hidden: torch.Tensor) -> torch.Tensor:
            return self.head(self.block(hidden))

        return checkpoint(rest, self.words(words), use_reentrant=kind == "reentrant")


@register_exact("Tied embeddings inside and outside a checkpoint", variants=KINDS)
def tied_checkpointed(run: Run, kind: str) -> None:
    """The model uses the table of words outside a checkpoint and, as the head, inside one."""
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(TOKENS, global_batch=8, microbatch=2, until=12):
        for (words,) in step:
            logits = model(words, kind)[:, :-1]
            step.backward(functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten()))


@register_exact("Selective checkpointing")
def selectively_checkpointed(run: Run) -> None:
    """The backward pass computes everything again except products of matrices."""
    model = nn.ModuleDict({"stem": nn.Linear(6, 16), "block": Block(), "head": nn.Linear(16, CLASSES)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)

    def policy(_context: object, operation: object, *_args: object, **_options: object) -> CheckpointPolicy:
        keep = operation in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            hidden = model["stem"](inputs)
            hidden = checkpoint(model["block"], hidden, use_reentrant=False, context_fn=contexts)
            step.backward(functional.cross_entropy(model["head"](hidden), targets))


class Normed(nn.Module):
    """Batch norm inside a checkpoint: its statistics move twice per pass, as in plain PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        def body(rows: torch.Tensor) -> torch.Tensor:
            return self.norm(self.layer(rows)).relu()

        return self.head(checkpoint(body, inputs, use_reentrant=False))


@register_exact(
    "Batch norm inside a checkpoint", note="The running statistics are updated twice, as in plain PyTorch."
)
def batch_norm_checkpointed(run: Run) -> None:
    """The backward pass computes the batch norm again, and updates its statistics a second time."""
    model = Normed()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


@register_exact("`torch.compile` of the model", note="`prepare` takes the model or the compiled one.")
def compiled(run: Run) -> None:
    """The script compiles the model after `prepare`."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    fast = torch.compile(model, backend="aot_eager")
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(fast(inputs), targets))


@register_exact("A compiled model passed to `prepare`")
def compiled_before(run: Run) -> None:
    """The script compiles a model with a batch norm, and passes it to `prepare`."""
    model = nn.Sequential(nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES))
    model = torch.compile(model, backend="eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


PARAMETRIZATIONS = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
}


@register_exact(
    "`torch.nn.utils.parametrizations`",
    note="The forward pass updates the buffers of `spectral_norm`.",
    variants=tuple(PARAMETRIZATIONS),
)
def parametrized(run: Run, kind: str) -> None:
    """A weight is computed from other parameters in each forward pass."""
    model = nn.Sequential(PARAMETRIZATIONS[kind](nn.Linear(6, 16)), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


@register_exact("Parametrised weights computed once (`parametrize.cached`)")
def parametrized_cached(run: Run) -> None:
    """The model uses a weight twice and computes it once per microbatch."""
    model = nn.Sequential(parametrizations.orthogonal(nn.Linear(6, 6)), nn.Tanh(), nn.Linear(6, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            with parametrize.cached():
                step.backward(functional.cross_entropy(model(model[0](inputs)), targets))


@register_exact(
    "Lazy layers, initialised by a dry run", note="Before `prepare`, and before the optimizer is built."
)
def lazy_initialised(run: Run) -> None:
    """A `LazyLinear` gets its shape from one forward pass."""
    model = nn.Sequential(nn.LazyLinear(16), nn.Tanh(), nn.LazyLinear(CLASSES))
    model(VECTORS[:2][0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


@register_refused("Lazy layers without a shape", "lazy", instead="Run one forward pass before `prepare`.")
def lazy(run: Run) -> None:
    """The script passes a `LazyLinear` to `prepare` before its first forward pass."""
    model = nn.Sequential(nn.LazyLinear(16), nn.Tanh(), nn.LazyLinear(CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


@register_exact("Two towers from one deepcopy")
def copied_layers(run: Run) -> None:
    """Two layers begin as copies of each other and are trained separately."""
    layer = nn.Linear(6, 6)
    model = nn.Sequential(layer, nn.Tanh(), copy.deepcopy(layer), nn.Tanh(), nn.Linear(6, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
