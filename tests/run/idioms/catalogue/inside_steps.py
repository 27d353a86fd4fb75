"""What the inner loop may do.

The inner loop computes a loss from a batch and from the state that the step began with. Several workers
compute the microbatches of a step, in any order, and again after a death. So a microbatch may not depend on
an earlier one, and may not change the state. Buffers that the forward pass changes are the exception: each
virtual rank starts from the committed buffers, and the step takes the mean of the changes.
"""

import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from elastane import Run

from .registry import register_exact, register_refused
from .samples import CLASSES, TOKENS, VECTORS, WORDS


@register_refused(
    "Weights clipped in the inner loop",
    "inside a step",
    instead="Clip after the inner loop.",
    shown=True,
)
def clipping_inside(run: Run) -> None:
    """The script clips the weights after each microbatch, not after the step."""
    critic = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    optimizer = torch.optim.RMSprop(critic.parameters(), lr=0.01)
    critic, optimizer = run.prepare(critic, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for real, _ in step:
            fake = torch.randn_like(real)
            step.backward(critic(fake).mean() - critic(real).mean())
            for parameter in critic.parameters():
                parameter.data.clamp_(-0.1, 0.1)


@register_refused(
    "Momentum encoder updated in the inner loop",
    "inside a step",
    instead="Update it after the inner loop.",
)
def momentum_encoder_inside(run: Run) -> None:
    """The script changes frozen parameters of the model in each microbatch."""
    model = nn.ModuleDict({"online": nn.Linear(6, 8)})
    model["target"] = copy.deepcopy(model["online"]).requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(model["online"].parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, _ in step:
            with torch.no_grad():
                for slow, fast in zip(
                    model["target"].parameters(), model["online"].parameters(), strict=True
                ):
                    slow.mul_(0.9).add_(fast, alpha=0.1)
                wanted = model["target"](inputs.flip(1))
            step.backward(functional.mse_loss(model["online"](inputs), wanted))


class ActNorm(nn.Module):
    """Takes its first shift and scale from the first batch that it sees (Glow)."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.scale = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.ones(6))
        self.register_buffer("initialised", torch.tensor(data=False))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if not self.initialised:
            with torch.no_grad():
                self.shift.copy_(-inputs.mean(0))
                self.scale.copy_(1 / (inputs.std(0) + 1e-6))
                self.initialised.fill_(value=True)
        return (inputs + self.shift) * self.scale


@register_refused(
    "Parameters initialised by the first batch (ActNorm)",
    "inside a step",
    instead="Run one forward pass on a few fixed samples before `prepare`.",
    shown=True,
)
def initialised_by_data(run: Run) -> None:
    """The first forward pass of the training writes into parameters."""
    model = nn.Sequential(ActNorm(), nn.Linear(6, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


@register_exact("Parameters initialised by data before `prepare`")
def initialised_before(run: Run) -> None:
    """A forward pass on the first samples of the dataset initialises the model, the same on every worker."""
    model = nn.Sequential(ActNorm(), nn.Linear(6, CLASSES))
    with torch.no_grad():
        model(VECTORS[:16][0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


class Tagger(nn.Module):
    """A recurrent language model."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.layers = nn.GRU(8, 12, batch_first=True)
        self.head = nn.Linear(12, WORDS)

    def forward(
        self, words: torch.Tensor, hidden: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        outputs, hidden = self.layers(self.words(words), hidden)
        return self.head(outputs), hidden


def next_word_loss(logits: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())


@register_refused(
    "Hidden state carried from batch to batch",
    "computed twice",
    instead="Begin each sequence with a new state, or put the whole sequence into one sample.",
    shown=True,
)
def hidden_state_carried(run: Run) -> None:
    """The hidden state of a recurrent network goes from one microbatch to the next (stateful BPTT)."""
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    hidden = None
    for step in run.steps(TOKENS, global_batch=8, microbatch=2, until=12):
        for (words,) in step:
            logits, hidden = model(words, hidden)
            hidden = hidden.detach()
            step.backward(next_word_loss(logits, words))


@register_exact("Hidden state within a sample", note="Cut long sequences into chunks inside the inner loop.")
def hidden_state_within(run: Run) -> None:
    """The hidden state goes from chunk to chunk of the same sequences, and the script adds the losses."""
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(TOKENS, global_batch=8, microbatch=2, until=12):
        for (words,) in step:
            hidden, losses = None, []
            for chunk in words.split(4, dim=1):
                logits, hidden = model(chunk, hidden)
                hidden = hidden.detach()
                losses.append(next_word_loss(logits, chunk))
            step.backward(torch.stack(losses).mean())


class Remembering(nn.Module):
    """Adds what it has seen last."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(6, CLASSES), torch.zeros(6)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        mixed = inputs + 0.1 * self.last
        self.last = inputs.detach().mean(0)
        return self.layer(mixed)


@register_refused(
    "State in an attribute of a module",
    "computed twice",
    instead="Register it as a buffer: each virtual rank starts from the committed value.",
)
def state_in_an_attribute(run: Run) -> None:
    """A module keeps a value of its last batch in a plain attribute."""
    model = Remembering()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


@register_refused(
    "A `torch.Generator` of your own",
    "computed twice",
    instead="Draw from the global generator, which is seeded for each virtual rank.",
)
def own_generator(run: Run) -> None:
    """Noise in the inner loop comes from a generator of the script."""
    model = nn.Linear(6, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    generator = torch.Generator().manual_seed(1)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            noise = 0.1 * torch.randn(inputs.shape, generator=generator)
            step.backward(functional.cross_entropy(model(inputs + noise), targets))


@register_refused(
    "A NumPy generator of your own",
    "computed twice",
    instead="Draw from the global generators of torch, NumPy or Python.",
)
def own_numpy_generator(run: Run) -> None:
    """Mixup takes its coefficient from a NumPy generator of the script."""
    model = nn.Linear(6, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    generator = np.random.default_rng(1)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            part = generator.beta(0.4, 0.4)
            mixed = part * inputs + (1 - part) * inputs.flip(0)
            step.backward(functional.cross_entropy(model(mixed), targets))


@register_refused(
    "A counter of microbatches that changes the loss",
    "computed twice",
    instead="Use `step.number`.",
)
def counter(run: Run) -> None:
    """The script counts batches, and warms up a part of the loss by that counter."""
    model = nn.Linear(6, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    batches = 0
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            batches += 1
            penalty = min(1.0, batches / 20) * model.weight.square().sum()
            step.backward(functional.cross_entropy(model(inputs), targets) + penalty)


@register_exact("Curriculum by `step.number`", shown=True)
def curriculum(run: Run) -> None:
    """Noise and a penalty grow with the number of the step."""
    model = nn.Linear(6, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            progress = min(1.0, step.number / 5)
            noisy = inputs + 0.1 * progress * torch.randn_like(inputs)
            penalty = 0.01 * progress * model.weight.square().sum()
            step.backward(functional.cross_entropy(model(noisy), targets) + penalty)


@register_exact(
    "Curriculum set up before the inner loop",
    note="If a joining worker's script reads `step.number` there, the worker joins first.",
)
def curriculum_outside(run: Run) -> None:
    """Before the inner loop, the script sets noise and learning rate by `step.number`, and scales weights."""
    model = nn.Linear(6, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        noise = 0.02 * min(step.number, 5)
        optimizer.param_groups[0]["lr"] = 0.1 / step.number
        with torch.no_grad():
            model.weight.mul_(0.99)
        for inputs, targets in step:
            noisy = inputs + noise * torch.randn_like(inputs)
            step.backward(functional.cross_entropy(model(noisy), targets))


@register_exact(
    "`model.train()` in the inner loop", note="The run restores a flag that a microbatch has changed."
)
def train_mode_inside(run: Run) -> None:
    """Each microbatch sets the training mode; an evaluation between steps sets the evaluation mode."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.3), nn.Linear(16, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(TensorDataset(*VECTORS[:43]), global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            model.train()
            step.backward(functional.cross_entropy(model(inputs), targets))
        model.eval()
        score = run.evaluate(VECTORS, microbatch=16)
        with torch.no_grad():
            for inputs, targets in score:
                score.add(right=(model(inputs).argmax(1) == targets).sum())
        run.print(step.number, score.sums["right"])


@register_exact(
    "Dropout annealed in an attribute",
    note="A worker that joins receives the numbers in attributes of modules.",
)
def dropout_annealed(run: Run) -> None:
    """The script lowers the probability of a dropout, and an attribute of its own, after each step."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, CLASSES))
    model.temperature = 2.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs) / model.temperature, targets))
        model[1].p *= 0.8
        model.temperature *= 0.9


@register_refused(
    "A learning rate set in the inner loop",
    "inside a step",
    instead="Set it before or after the inner loop.",
)
def rate_set_inside(run: Run) -> None:
    """The script sets the learning rate before each microbatch, as in a loop over a loader."""
    model = nn.Linear(6, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            optimizer.param_groups[0]["lr"] = 0.2 / (1 + step.number)
            step.backward(functional.cross_entropy(model(inputs), targets))


@register_refused(
    "`optimizer.step()` called by the script",
    "optimizer.step",
    instead="Remove it, and `zero_grad` with it: the run applies a step when the inner loop ends.",
)
def optimizer_stepped(run: Run) -> None:
    """The script steps the optimizer that it has passed to `prepare`."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()


@register_refused(
    "A second optimizer (GAN)",
    "optimizer.step",
    instead="Put both networks into one module, with one optimizer of two groups; see GAN below.",
)
def two_optimizers(run: Run) -> None:
    """Generator and discriminator each have an optimizer, and the script steps the second one."""
    generator, discriminator = nn.Linear(3, 6), nn.Linear(6, 1)
    optimizer = torch.optim.Adam(generator.parameters(), lr=0.02)
    other = torch.optim.Adam(discriminator.parameters(), lr=0.02)
    run.prepare(nn.ModuleList([generator, discriminator]), optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for real, _ in step:
            fake = generator(torch.randn(len(real), 3))
            step.backward(functional.softplus(-discriminator(fake)).mean())
            judged = functional.softplus(-discriminator(real)) + functional.softplus(
                discriminator(fake.detach())
            )
            other.zero_grad()
            judged.mean().backward()
            other.step()


@register_refused(
    "A temperature with its own optimizer (SAC)",
    "optimizer.step",
    instead="Make it a parameter of the model, in a group of the one optimizer.",
)
def temperature_optimizer(run: Run) -> None:
    """A second optimizer trains one number between steps."""
    model = nn.Linear(6, CLASSES)
    temperature = nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    other = torch.optim.Adam([temperature], lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            loss = functional.cross_entropy(model(inputs) * temperature.detach().exp(), targets)
            step.backward(loss)
        other.zero_grad()
        (temperature.exp() * (step.loss - 1.0)).backward()
        other.step()


class Gan(nn.Module):
    """Two networks in one module."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 6))
        self.discriminator = nn.Sequential(nn.Linear(6, 12), nn.LeakyReLU(0.2), nn.Linear(12, 1))


@register_exact(
    "GAN with alternating steps", note="A parameter without a gradient does not change.", shown=True
)
def gan_alternating(run: Run) -> None:
    """One optimizer has both networks; odd steps train the discriminator, even ones the generator."""
    model = Gan()
    groups = [
        {"params": model.generator.parameters(), "lr": 0.01},
        {"params": model.discriminator.parameters(), "lr": 0.02},
    ]
    optimizer = torch.optim.Adam(groups, betas=(0.5, 0.9))
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for real, _ in step:
            noise = torch.randn(len(real), 3)
            if step.number % 2:
                fake = model.generator(noise).detach()
                judged = functional.softplus(-model.discriminator(real))
                step.backward((judged + functional.softplus(model.discriminator(fake))).mean())
            else:
                model.discriminator.requires_grad_(requires_grad=False)
                step.backward(functional.softplus(-model.discriminator(model.generator(noise))).mean())
                model.discriminator.requires_grad_(requires_grad=True)


@register_exact("GAN with both losses in one step", shown=True)
def gan_at_once(run: Run) -> None:
    """Through detached inputs and frozen calls, each loss trains its own network only."""
    model = Gan()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.5, 0.9))
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for real, _ in step:
            fake = model.generator(torch.randn(len(real), 3))
            frozen = {name: value.detach() for name, value in model.discriminator.named_parameters()}
            fooled = torch.func.functional_call(model.discriminator, frozen, (fake,))
            judged = functional.softplus(-model.discriminator(real))
            judged = judged + functional.softplus(model.discriminator(fake.detach()))
            step.backward((judged + functional.softplus(-fooled)).mean())


@register_exact(
    "`model.zero_grad()` left in", note="It has no effect: the run takes each gradient when it is computed."
)
def zero_grad_left_in(run: Run) -> None:
    """The script clears the gradients before and after each microbatch, and after the step."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    model, _ = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.02))
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            model.zero_grad()
            step.backward(functional.cross_entropy(model(inputs), targets))
            model.zero_grad()
        model.zero_grad(set_to_none=True)


@register_refused(
    "`loss.backward()`",
    "without step.backward",
    instead="Write `step.backward(loss)`.",
)
def plain_backward(run: Run) -> None:
    """The script calls the backward pass as in plain PyTorch."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            functional.cross_entropy(model(inputs), targets).backward()


@register_refused(
    "The inner loop left early",
    "was not iterated to its end",
    instead="Loop over the whole step; leave the outer loop instead.",
)
def inner_loop_left(run: Run) -> None:
    """The script leaves a step after its first microbatch."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
            break


@register_refused(
    "Two calls of `step.backward` for one microbatch",
    "without a microbatch",
    instead="Add the losses and call it once.",
)
def backward_twice(run: Run) -> None:
    """The script calls `step.backward` for each of two losses."""
    model = nn.Linear(6, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
            step.backward(0.01 * model.weight.square().sum())


@register_refused(
    "A skipped microbatch",
    "without step.backward",
    instead="Give it a weight of 0: `step.backward(0.0 * loss, weight=0.0)`.",
)
def batch_passed_over(run: Run) -> None:
    """The script skips some batches."""
    model = nn.Linear(6, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            loss = functional.cross_entropy(model(inputs), targets)
            if loss > 1.0:
                continue
            step.backward(loss)


@register_exact("A microbatch without weight", note="The step is divided by the sum of the weights.")
def batch_without_weight(run: Run) -> None:
    """Some microbatches have a weight of 0."""
    model = nn.Linear(6, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            loss = functional.cross_entropy(model(inputs), targets, reduction="sum")
            weight = float(len(inputs)) if inputs[0, 0] > 0 else 0.0
            step.backward(loss if weight else 0.0 * loss, weight=weight)


@register_exact(
    "Side effects that change nothing", note="They happen for every microbatch that this worker computes."
)
def side_effects(run: Run) -> None:
    """The script counts batches and remembers losses, and does not use them for the training."""
    model = nn.Linear(6, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    losses: list[float] = []
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            loss = functional.cross_entropy(model(inputs), targets)
            losses.append(loss.item())
            step.backward(loss)


@register_refused(
    "Losses remembered in the inner loop",
    "computed twice",
    instead="Pass them on with `step.gathered.add`, and write into the memory after the inner loop.",
)
def remembered_losses(run: Run) -> None:
    """The script weights samples by the last loss of their class, which the inner loop writes down."""
    model = nn.Linear(6, CLASSES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    last = torch.ones(CLASSES)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            losses = functional.cross_entropy(model(inputs), targets, reduction="none")
            last[targets] = losses.detach()
            step.backward((losses * last[targets] / last.mean()).mean())
