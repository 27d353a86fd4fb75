"""Models and their buffers.

Buffers that the forward pass changes are state. Each virtual rank starts from the committed buffers; the
step adds the mean of the changes to them.
"""

import copy
import warnings

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune

from elastane import Run

from .registry import register_exact, register_refused
from .samples import CLASSES, IMAGES, TOKENS, VECTORS, WORDS


@register_exact("Dropout")
def dropout(run: Run) -> None:
    """The model draws masks from the global generator."""
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


@register_exact(
    "Batch norm", note="Its statistics are per microbatch; running statistics take the mean over the step."
)
def batch_norm(run: Run) -> None:
    """Running means, variances and the counter of batches are buffers."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    model.append(nn.Linear(144, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(IMAGES, global_batch=8, microbatch=2, until=12):
        for images, targets in step:
            step.backward(functional.cross_entropy(model(images), targets))


@register_exact("Frozen batch norm")
def frozen_batch_norm(run: Run) -> None:
    """The norm stays in evaluation mode and its parameters are not trained (fine-tuning)."""
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES))
    model[1].eval().requires_grad_(requires_grad=False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


def prepare_quantization() -> nn.Module:
    """Return a model that rounds its weights and activations as a quantized one would, and watches them."""
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, CLASSES)).train()
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig("x86")
    with warnings.catch_warnings(action="ignore"):
        return torch.ao.quantization.prepare_qat(model)


@register_exact(
    "Training with fake quantization (QAT)",
    note="The observers see data before `run.prepare`, and are switched off then.",
)
def quantization_without_observers(run: Run) -> None:
    """The model rounds its weights and activations by ranges that were measured before."""
    model = prepare_quantization()
    model(VECTORS.tensors[0])
    model.apply(torch.ao.quantization.disable_observer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


@register_refused(
    "Observers of a quantization that watch the training",
    "disable_observer",
    instead="Show them data before `run.prepare`, then call `model.apply(disable_observer)`.",
)
def quantization_with_observers(run: Run) -> None:
    """The forward pass widens the ranges by which it rounds, one microbatch after the other."""
    model = prepare_quantization()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


class Experts(nn.Module):
    """Each sample goes to two of four experts; how unevenly they are used is left in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(6, 4)
        self.experts = nn.ModuleList(nn.Linear(6, CLASSES) for _ in range(4))
        self.balance = torch.zeros(())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        chances = self.router(inputs).softmax(1)
        weights, chosen = chances.topk(2, dim=1)
        used = functional.one_hot(chosen, 4).float().mean((0, 1))
        self.balance = 4 * (used * chances.mean(0)).sum()
        outputs = torch.zeros(len(inputs), CLASSES)
        for number, expert in enumerate(self.experts):
            rows, places = (chosen == number).nonzero(as_tuple=True)
            if len(rows):
                outputs = outputs.index_add(0, rows, expert(inputs[rows]) * weights[rows, places, None])
        return outputs


@register_exact(
    "Mixture of experts",
    note="Each forward pass sets the attribute before the loop reads it.",
    shown=True,
)
def mixture_of_experts(run: Run) -> None:
    """The model routes to two experts, and leaves a balancing loss in an attribute that the loop reads."""
    model = Experts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets) + 0.01 * model.balance)


class Balanced(nn.Module):
    """One of four experts for each sample, chosen with a bias that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(6, 4), nn.Linear(6, 4 * CLASSES)
        self.register_buffer("bias", torch.zeros(4))
        self.register_buffer("load", torch.zeros(4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scores = self.router(inputs).sigmoid()
        chosen = (scores + self.bias).argmax(1)
        self.load += functional.one_hot(chosen, 4).sum(0)
        rows = torch.arange(len(inputs))
        return self.experts(inputs).view(-1, 4, CLASSES)[rows, chosen] * scores[rows, chosen, None]


@register_exact("Balancing bias of experts, updated between steps", note="Keep load and bias in buffers.")
def balancing_bias(run: Run) -> None:
    """The router's bias is a buffer that the script updates after every step (DeepSeek-V3)."""
    model = Balanced()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        model.bias += 0.01 * (model.load.mean() - model.load).sign()
        model.load.zero_()


class Lora(nn.Module):
    """A frozen layer with a small trained one beside it."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.base(inputs) + self.up(self.down(inputs))


@register_exact("LoRA on a frozen base", shown=True)
def lora(run: Run) -> None:
    """The script trains only small matrices beside frozen layers."""
    model = nn.Sequential(Lora(nn.Linear(6, 16)), nn.Tanh(), Lora(nn.Linear(16, CLASSES)))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


@register_exact("All parameters given to the optimizer, some frozen")
def frozen_in_the_optimizer(run: Run) -> None:
    """The optimizer also has parameters that require no gradient."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    model[0].requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


@register_exact("Tied embeddings")
def tied(run: Run) -> None:
    """The input and output embeddings share one table."""
    model = nn.ModuleDict({"words": nn.Embedding(WORDS, 16), "head": nn.Linear(16, WORDS, bias=False)})
    model["head"].weight = model["words"].weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(TOKENS, global_batch=8, microbatch=2, until=12):
        for (words,) in step:
            logits = model["head"](model["words"](words[:, :-1]).cumsum(1))
            step.backward(functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten()))


@register_exact("Sparse embedding", note="The run makes its gradient dense.")
def sparse_embedding(run: Run) -> None:
    """A bag of words has an `nn.Embedding(sparse=True)`."""
    model = nn.Sequential(nn.EmbeddingBag(WORDS, 8, sparse=True), nn.Linear(8, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(TOKENS, global_batch=8, microbatch=2, until=12):
        for (words,) in step:
            step.backward(functional.cross_entropy(model(words), words[:, 0] % CLASSES))


@register_exact("A layer that some batches do not use")
def seldom_used(run: Run) -> None:
    """The model uses a branch only for batches with a large first number."""
    model = nn.ModuleDict({"always": nn.Linear(6, CLASSES), "seldom": nn.Linear(6, CLASSES)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            logits = model["always"](inputs)
            if inputs[0, 0] > 1.0:
                logits = logits + model["seldom"](inputs)
            step.backward(functional.cross_entropy(logits, targets))


@register_exact("Stochastic depth", note="Draw from the global generator.")
def stochastic_depth(run: Run) -> None:
    """The model skips random layers, each for a whole microbatch."""
    model = nn.ModuleList([*(nn.Linear(6, 6) for _ in range(4)), nn.Linear(6, CLASSES)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            hidden = inputs
            for layer in model[:-1]:
                if torch.rand(()) < 0.7:
                    hidden = hidden + torch.tanh(layer(hidden))
            step.backward(functional.cross_entropy(model[-1](hidden), targets))


class Counting(nn.Module):
    """Counts in buffers of many types, and replaces one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, CLASSES)
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("largest", torch.zeros(6))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.batches += 1
        self.mean = 0.9 * self.mean + 0.1 * inputs.mean(0)
        self.largest.copy_(torch.maximum(self.largest, inputs.abs().amax(0)))
        return self.layer(inputs / (1 + self.largest))


@register_exact(
    "Counters and running statistics in buffers", note="Replacing a buffer works like writing into it."
)
def counting(run: Run) -> None:
    """The forward pass counts batches, replaces a running mean and writes into a running maximum."""
    model = Counting()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
    run.print(int(model.batches), float(model.mean.sum()).hex(), float(model.largest.sum()).hex())


class Codebook(nn.Module):
    """Vector quantisation; each code word follows an average of its inputs (VQ-VAE)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 4), nn.Linear(4, 6)
        self.register_buffer("codes", torch.randn(8, 4))
        self.register_buffer("counts", torch.ones(8))
        self.register_buffer("sums", self.codes.clone())

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        encoded = self.encoder(inputs)
        chosen = torch.cdist(encoded, self.codes).argmin(1)
        quantised = self.codes[chosen]
        if self.training:
            with torch.no_grad():
                fallen = functional.one_hot(chosen, 8).float()
                self.counts.mul_(0.9).add_(fallen.sum(0), alpha=0.1)
                self.sums.mul_(0.9).add_(fallen.T @ encoded, alpha=0.1)
                self.codes.copy_(self.sums / self.counts.clamp(min=1e-3)[:, None])
        commitment = functional.mse_loss(encoded, quantised.detach())
        return self.decoder(encoded + (quantised - encoded).detach()), commitment


@register_exact(
    "Code words that follow an average (VQ-VAE)",
    note="The forward pass updates them.",
)
def vector_quantisation(run: Run) -> None:
    """The codebook is in buffers, which the forward pass updates."""
    model = Codebook()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, _ in step:
            outputs, commitment = model(inputs)
            step.backward(functional.mse_loss(outputs, inputs) + 0.25 * commitment)


SMALL_TYPES = ("bool", "uint8", "int16")


class Flags(nn.Module):
    """Marks words that it has seen in a buffer of a small type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, CLASSES)
        self.register_buffer("seen", torch.zeros(WORDS, dtype=dtype))

    def forward(self, words: torch.Tensor, *, mark: bool = False) -> torch.Tensor:
        hidden = self.words(words) * (1.0 + self.seen[words, None].float())
        if mark:
            self.seen[words.flatten()] = 1
        return self.head(hidden.mean(1))


@register_exact("Small integers and flags in buffers, changed between steps", variants=SMALL_TYPES)
def small_types_between(run: Run, dtype: str) -> None:
    """After every step the script marks a word in a buffer of type bool, uint8 or int16."""
    model = Flags(getattr(torch, dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(TOKENS, global_batch=8, microbatch=2, until=12):
        for (words,) in step:
            step.backward(functional.cross_entropy(model(words), words[:, 0] % CLASSES))
        model.seen[step.number % WORDS] = 1


@register_exact("Small integers and flags in buffers, changed in the forward pass", variants=SMALL_TYPES)
def small_types_in_forward(run: Run, dtype: str) -> None:
    """The forward pass marks its words in a buffer of type bool, uint8 or int16."""
    model = Flags(getattr(torch, dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(TOKENS, global_batch=8, microbatch=2, until=12):
        for (words,) in step:
            step.backward(functional.cross_entropy(model(words, mark=True), words[:, 0] % CLASSES))


class Rope(nn.Module):
    """A cache in a buffer that is not persistent grows with the longest sequence seen."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, CLASSES)
        self.register_buffer("angles", torch.zeros(0), persistent=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        if len(self.angles) < words.shape[1]:
            self.angles = torch.arange(words.shape[1]) * 0.1
        hidden = self.words(words) * self.angles[: words.shape[1], None].cos()
        return self.head(hidden.mean(1))


@register_exact("A cache in a non-persistent buffer", note="Its content depends on the batch only.")
def cache_in_a_buffer(run: Run) -> None:
    """The forward pass fills a cache of positions when it first needs it."""
    model = Rope()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(TOKENS, global_batch=8, microbatch=2, until=12):
        for (words,) in step:
            step.backward(functional.cross_entropy(model(words), words[:, 0] % CLASSES))


class Centring(nn.Module):
    """Subtracts a running mean that is left out of the state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, CLASSES)
        self.register_buffer("mean", torch.zeros(6), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = self.layer(inputs - self.mean)
        with torch.no_grad():
            self.mean.lerp_(inputs.mean(0), 0.1)
        return outputs


@register_refused(
    "A running mean in a non-persistent buffer",
    "computed twice",
    instead="Make it persistent: the run treats a buffer that is not in the state dict as a cache.",
)
def running_mean_not_persistent(run: Run) -> None:
    """The forward pass updates a buffer that is not in the state dict."""
    model = Centring()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


@register_exact("Parameters of several types")
def several_types(run: Run) -> None:
    """A part of the model is in bf16, and the rest in fp32."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES, dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            hidden = model[1](model[0](inputs)).bfloat16()
            step.backward(functional.cross_entropy(model[2](hidden).float(), targets))


@register_exact("Complex parameters")
def complex_parameters(run: Run) -> None:
    """A filter in the frequency domain has complex weights (FNO)."""
    model = nn.ModuleDict({"head": nn.Linear(6, CLASSES)})
    model.register_parameter("filter", nn.Parameter(torch.randn(4, dtype=torch.complex64)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            filtered = torch.fft.irfft(torch.fft.rfft(inputs) * model.filter, n=6)
            step.backward(functional.cross_entropy(model["head"](filtered), targets))


@register_exact("Channels last")
def channels_last(run: Run) -> None:
    """The weights have the memory format channels last."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, CLASSES)
    )
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(IMAGES, global_batch=8, microbatch=2, until=12):
        for images, targets in step:
            logits = model(images.to(memory_format=torch.channels_last))
            step.backward(functional.cross_entropy(logits, targets))


@register_exact("Transformer and LSTM of torch", variants=("transformer", "lstm"))
def layers_of_torch(run: Run, kind: str) -> None:
    """The model has layers of torch, with dropout."""
    model = nn.ModuleDict({"words": nn.Embedding(WORDS, 8), "head": nn.Linear(8, CLASSES)})
    if kind == "transformer":
        model["body"] = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    else:
        model["body"] = nn.LSTM(8, 8, num_layers=2, dropout=0.1, batch_first=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(TOKENS, global_batch=8, microbatch=2, until=12):
        for (words,) in step:
            hidden = model["body"](model["words"](words))
            hidden = hidden if kind == "transformer" else hidden[0]
            step.backward(functional.cross_entropy(model["head"](hidden.mean(1)), words[:, 0] % CLASSES))


@register_exact("Forward hooks that feed a loss")
def forward_hooks(run: Run) -> None:
    """A hook collects activations, and the loop adds a penalty on them to the loss."""
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    activations: list[torch.Tensor] = []
    model[1].register_forward_hook(lambda _layer, _inputs, outputs: activations.append(outputs))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            activations.clear()
            loss = functional.cross_entropy(model(inputs), targets)
            step.backward(loss + 0.01 * sum(activation.mean() for activation in activations))


@register_refused(
    "A trained parameter outside the model",
    "the optimizer has a parameter that the model does not",
    instead="Register it in the module that you pass to `prepare`.",
)
def parameter_outside(run: Run) -> None:
    """The optimizer trains a temperature that is not in the module."""
    model = nn.Linear(6, CLASSES)
    temperature = nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.AdamW([*model.parameters(), temperature], lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs) * temperature.exp(), targets))


@register_refused(
    "`DistributedDataParallel` or `DataParallel`",
    "the model is wrapped",
    instead="Pass the model itself: the run divides each step among its workers.",
    variants=("before", "after"),
)
def wrapped_model(run: Run, place: str) -> None:
    """The script wraps the model, before `prepare` or after it."""
    model = nn.Linear(6, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if place == "before":
        run.prepare(nn.DataParallel(model), optimizer)
    run.prepare(model, optimizer)
    wrapped = nn.DataParallel(model)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(wrapped(inputs), targets))


@register_refused(
    "Two models, prepared one after the other",
    "prepare was called twice",
    instead="Put both into one `nn.ModuleDict` with one optimizer.",
)
def prepared_twice(run: Run) -> None:
    """The script calls `prepare` for each of two models."""
    model = nn.Linear(6, CLASSES)
    other = copy.deepcopy(model)
    model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    other, _ = run.prepare(other, torch.optim.SGD(other.parameters(), lr=0.1))
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs) + other(inputs), targets))


@register_refused(
    "A layer added after `prepare`",
    "than in run.prepare",
    instead="Build the whole model before `prepare`; skip the layer in the forward pass until then.",
)
def layer_added(run: Run) -> None:
    """The script adds a layer to the model during the training."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        if step.number == 4:
            model.append(nn.Linear(CLASSES, CLASSES))


@register_refused(
    "`torch.nn.utils.prune` after `prepare`",
    "than in run.prepare",
    instead="Prune before `prepare`, and write into the mask, which is a buffer, between steps.",
)
def pruned_later(run: Run) -> None:
    """Pruning replaces a parameter and adds a buffer during the training."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        if step.number == 4:
            prune.l1_unstructured(model[0], "weight", amount=0.5)
