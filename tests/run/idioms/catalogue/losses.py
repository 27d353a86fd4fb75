"""Losses and gradients.

`step.backward(loss)` takes the mean over the microbatch, or a sum and a weight to divide by.
"""

import math

import numpy as np
import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn import functional

from elastane import Run

from .registry import register_exact, register_refused
from .samples import CLASSES, IMAGES, TOKENS, VECTORS, WORDS


@register_exact("Several losses added")
def losses_added(run: Run) -> None:
    """The loss is a sum of a main loss, an auxiliary one and a penalty."""
    model = nn.ModuleDict({"body": nn.Linear(6, 16), "head": nn.Linear(16, CLASSES), "aux": nn.Linear(16, 6)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            hidden = torch.tanh(model["body"](inputs))
            main = functional.cross_entropy(model["head"](hidden), targets)
            auxiliary = functional.mse_loss(model["aux"](hidden), inputs)
            penalty = sum(parameter.square().sum() for parameter in model.parameters())
            step.backward(main + 0.3 * auxiliary + 1e-3 * penalty)


@register_exact(
    "`auxiliary.backward()` by hand",
    note="The run adds its gradient once per microbatch, without a weight. For a mean, add the losses.",
    shown=True,
)
def backward_by_hand(run: Run) -> None:
    """A second loss has a backward pass of its own before `step.backward`."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            auxiliary = 0.1 * model(inputs.flip(1)).logsumexp(1).mean()
            auxiliary.backward()
            step.backward(functional.cross_entropy(model(inputs), targets))


@register_exact("Weighted by tokens", note="Pass the sum and the weight.", shown=True)
def weighted_by_tokens(run: Run) -> None:
    """The number of targets that count differs between microbatches."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            ignored = torch.where(targets == 0, -100, targets)
            total = functional.cross_entropy(model(inputs), ignored, reduction="sum")
            step.backward(total, weight=(ignored != -100).sum())


@register_exact(
    "Loss divided by the tokens of the whole step",
    note="Each worker loads all microbatches of the step to count.",
    shown=True,
)
def divided_by_count(run: Run) -> None:
    """The script divides the loss itself, by the tokens that count in all microbatches of the step."""
    model = nn.Sequential(nn.Embedding(WORDS, 8), nn.Linear(8, WORDS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(TOKENS, global_batch=8, microbatch=2, until=12):
        for (words,) in step:
            tokens = step.count(lambda batch: (batch[0][:, 1:] > 4).sum())
            targets = torch.where(words[:, 1:] > 4, words[:, 1:], -100).flatten()
            total = functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), targets, reduction="sum")
            step.backward(total / tokens, summed=True)


@register_exact("Largest loss of a microbatch", note="Every worker has the numbers of all microbatches.")
def gathered_losses(run: Run) -> None:
    """The script lowers the learning rate when a microbatch has a much larger loss than the others."""
    model = nn.Linear(6, CLASSES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            loss = functional.cross_entropy(model(inputs), targets)
            step.gathered.add(loss=loss)
            step.backward(loss)
        losses = step.gathered["loss"]
        if max(losses) > 1.2 * sum(losses) / len(losses):
            optimizer.param_groups[0]["lr"] *= 0.8


@register_exact("Weights of samples from the dataset")
def weights_of_samples(run: Run) -> None:
    """The dataset has a weight for each sample."""
    model = nn.Linear(6, CLASSES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            weights = inputs[:, 0].sigmoid()
            losses = functional.cross_entropy(model(inputs), targets, reduction="none")
            step.backward((weights * losses).sum(), weight=weights.sum())


@register_exact("Label smoothing and class weights")
def label_smoothing(run: Run) -> None:
    """The loss is a cross entropy with smoothed labels and a weight for each class."""
    model = nn.Linear(6, CLASSES)
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5, 1.0]), label_smoothing=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(criterion(model(inputs), targets))


@register_exact("Mixup", note="Random numbers of torch, NumPy and Python are seeded for each virtual rank.")
def mixup(run: Run) -> None:
    """The script mixes samples and labels in random proportions."""
    model = nn.Linear(6, CLASSES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            part = np.random.beta(0.4, 0.4)
            order = torch.randperm(len(inputs))
            logits = model(part * inputs + (1 - part) * inputs[order])
            one, other = (functional.cross_entropy(logits, labels) for labels in (targets, targets[order]))
            step.backward(part * one + (1 - part) * other)


@register_exact("Contrastive loss", note="Negatives come from the same microbatch; choose it large enough.")
def contrastive(run: Run) -> None:
    """The loss makes two views of a sample more similar than views of different samples (SimCLR)."""
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=16, microbatch=4, until=12):
        for inputs, _ in step:
            one, other = (
                functional.normalize(model(inputs + 0.1 * torch.randn_like(inputs)), dim=1) for _ in range(2)
            )
            step.backward(functional.cross_entropy(one @ other.T / 0.1, torch.arange(len(inputs))))


@register_exact(
    "Distillation from a constant teacher", note="Every worker builds the teacher when it runs the script."
)
def distillation(run: Run) -> None:
    """A student learns from the outputs of a constant teacher outside the model."""
    teacher = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, CLASSES)).eval()
    student = nn.Linear(6, CLASSES)
    optimizer = torch.optim.AdamW(student.parameters(), lr=0.02)
    student, optimizer = run.prepare(student, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, _ in step:
            with torch.no_grad():
                wanted = (teacher(inputs) / 2).softmax(1)
            step.backward(
                functional.kl_div((student(inputs) / 2).log_softmax(1), wanted, reduction="batchmean")
            )


@register_exact("Distillation from a teacher inside the model")
def teacher_inside(run: Run) -> None:
    """Teacher and student are in one module, and only the student is trained."""
    model = nn.ModuleDict({"teacher": nn.Linear(6, CLASSES), "student": nn.Linear(6, CLASSES)})
    model["teacher"].requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW(model["student"].parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, _ in step:
            step.backward(functional.mse_loss(model["student"](inputs), model["teacher"](inputs)))


@register_exact("Feature matching")
def feature_matching(run: Run) -> None:
    """A generator learns to match mean features that a frozen network finds in real samples."""
    model = nn.ModuleDict({"generator": nn.Linear(3, 6), "critic": nn.Linear(6, 16)})
    model["critic"].requires_grad_(requires_grad=False)
    optimizer = torch.optim.Adam(model["generator"].parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for real, _ in step:
            fake = model["generator"](torch.randn(len(real), 3))
            real_features, fake_features = (
                model["critic"](samples).relu().mean(0) for samples in (real, fake)
            )
            step.backward(functional.l1_loss(fake_features, real_features))


@register_exact("Gradient penalty (WGAN-GP)", shown=True)
def gradient_penalty(run: Run) -> None:
    """The loss has a penalty on the gradient of the critic with respect to its input."""
    critic = nn.Sequential(nn.Linear(6, 16), nn.Softplus(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(critic.parameters(), lr=0.01, betas=(0.0, 0.9))
    critic, optimizer = run.prepare(critic, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for real, _ in step:
            fake = torch.randn_like(real)
            between = torch.lerp(real, fake, torch.rand(len(real), 1)).requires_grad_()
            (gradient,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            penalty = (gradient.norm(dim=1) - 1).square().mean()
            step.backward(critic(fake).mean() - critic(real).mean() + 10 * penalty)


@register_exact("Adversarial training (FGSM)")
def adversarial(run: Run) -> None:
    """The script moves inputs along the sign of their gradient, and then computes the loss."""
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            inputs.requires_grad_()
            (gradient,) = torch.autograd.grad(functional.cross_entropy(model(inputs), targets), inputs)
            moved = (inputs + 0.1 * gradient.sign()).detach()
            step.backward(functional.cross_entropy(model(moved), targets))


@register_exact(
    "Meta-learning (MAML)", note="Inner steps are functional: they change no parameter of the model."
)
def meta_learning(run: Run) -> None:
    """The script makes an inner step on half of a microbatch and computes the loss on the other half."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=16, microbatch=4, until=12):
        for inputs, targets in step:
            weights = dict(model.named_parameters())
            loss = functional.cross_entropy(
                torch.func.functional_call(model, weights, inputs[:2]), targets[:2]
            )
            gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            adapted = {
                name: weight - 0.1 * gradient
                for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
            }
            logits = torch.func.functional_call(model, adapted, inputs[2:])
            step.backward(functional.cross_entropy(logits, targets[2:]))


@register_exact(
    "Gradients of single samples", note="`torch.func` works on values; give `step.backward` a loss."
)
def gradients_of_samples(run: Run) -> None:
    """`vmap` and `grad` compute the gradient of each sample; samples with a large one count less."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)

    def compute_loss(
        weights: dict[str, torch.Tensor], sample: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        logits = torch.func.functional_call(model, weights, sample[None])
        return functional.cross_entropy(logits, target[None])

    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            weights = {name: weight.detach() for name, weight in model.named_parameters()}
            per_sample = torch.vmap(torch.func.grad(compute_loss), in_dims=(None, 0, 0))(
                weights, inputs, targets
            )
            norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in per_sample.values()]).norm(
                dim=0
            )
            losses = functional.cross_entropy(model(inputs), targets, reduction="none")
            step.backward((losses / norms.clamp(min=1.0)).mean())


@register_exact(
    "Hooks on the gradients of parameters", note="They act on each microbatch's gradient, not on the sum."
)
def hooks_on_parameters(run: Run) -> None:
    """A hook clamps the gradient of one weight."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    model[0].weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


@register_exact(
    "Hooks on accumulated gradients",
    note="They act on each microbatch's gradient, before the run takes it.",
)
def hooks_on_accumulated_gradients(run: Run) -> None:
    """A hook normalises `.grad` of each weight after its backward pass."""

    def normalise(parameter: nn.Parameter) -> None:
        parameter.grad.div_(parameter.grad.norm().clamp(min=1e-6))

    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    model[0].weight.register_post_accumulate_grad_hook(normalise)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    model[2].weight.register_post_accumulate_grad_hook(normalise)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


class Reversed(torch.autograd.Function):
    """Passes its input on, and the gradient back with the other sign."""

    @staticmethod
    def forward(ctx: object, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return -gradient


@register_exact("An `autograd.Function` of your own")
def gradient_reversal(run: Run) -> None:
    """A function reverses the gradient of a second head (domain adaptation)."""
    model = nn.ModuleDict(
        {"body": nn.Linear(6, 16), "head": nn.Linear(16, CLASSES), "domain": nn.Linear(16, 2)}
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            hidden = torch.tanh(model["body"](inputs))
            domains = model["domain"](Reversed.apply(hidden))
            fooled = functional.cross_entropy(domains, (inputs[:, 5] > 0).long())
            step.backward(functional.cross_entropy(model["head"](hidden), targets) + fooled)


@register_exact("Gradient clipping", note="Clip through `prepare`: `.grad` is None in the loop.", shown=True)
def clipped(run: Run) -> None:
    """The run clips the norm of the whole step's gradient."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    model, optimizer = run.prepare(model, optimizer, clip_grad_norm=0.1)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


@register_refused(
    "Gradients clipped by hand",
    "clip_grad_norm",
    instead="Pass `clip_grad_norm` to `prepare`: in the loop there is no `.grad` to clip.",
)
def clipped_by_hand(run: Run) -> None:
    """The script calls `clip_grad_norm_` after the backward pass."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)


@register_refused(
    "Gradients clipped by hand between two steps",
    "clip_grad_norm",
    instead="Pass `clip_grad_norm` to `prepare`.",
)
def clipped_between(run: Run) -> None:
    """The script calls `clip_grad_value_` after the inner loop, where `optimizer.step()` would follow."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        nn.utils.clip_grad_value_(model.parameters(), 0.1)


@register_refused(
    "`optimizer.zero_grad()`",
    "optimizer.zero_grad() was called",
    instead="Remove it: the run takes each gradient when it is computed.",
)
def zero_grad(run: Run) -> None:
    """The script sets gradients to zero before each microbatch, as in plain PyTorch."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            optimizer.zero_grad()
            step.backward(functional.cross_entropy(model(inputs), targets))


@register_refused(
    "A loss that is not a tensor of one element",
    "step.backward was given",
    instead="Pass the tensor of the mean, or of the sum with `weight=`.",
    variants=("vector", "number", "detached", "none"),
)
def other_losses(run: Run, kind: str) -> None:
    """The script passes a loss for each sample, a number, a detached tensor or None."""
    model = nn.Linear(6, CLASSES)
    model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            losses = functional.cross_entropy(model(inputs), targets, reduction="none")
            mean = losses.mean()
            passed = {"vector": losses, "number": mean.item(), "detached": mean.detach(), "none": None}
            step.backward(passed[kind])


@register_refused(
    "A `GradScaler` by hand",
    "scaler",
    instead="Pass `scaler=` to `prepare` and call `step.backward(loss)`.",
)
def scaler_by_hand(run: Run) -> None:
    """The script scales the loss with a scaler that it does not pass to `prepare`."""
    model = nn.Linear(6, CLASSES)
    model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    scaler = torch.amp.GradScaler("cpu")
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(scaler.scale(functional.cross_entropy(model(inputs), targets)))
        scaler.update()


@register_exact(
    "Sharpness-aware minimisation (SAM)", note="Each microbatch has its own ascent (m-sharpness)."
)
def sharpness_aware(run: Run) -> None:
    """The loss is computed at weights moved along its gradient, without a change of the model."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            weights = dict(model.named_parameters())
            loss = functional.cross_entropy(model(inputs), targets)
            gradients = torch.autograd.grad(loss, list(weights.values()))
            norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
            moved = {
                name: weight + 0.05 * gradient / norm
                for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
            }
            logits = torch.func.functional_call(model, moved, inputs)
            step.backward(functional.cross_entropy(logits, targets))


@register_exact("Autocast to bf16")
def autocast(run: Run) -> None:
    """The forward pass runs in bf16 where that is safe."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(IMAGES, global_batch=8, microbatch=2, until=12):
        for images, targets in step:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = functional.cross_entropy(model(images), targets)
            step.backward(loss)


@register_exact(
    "`GradScaler` for fp16", note="Pass it to `prepare`; `step.skipped` is true for a step that overflowed."
)
def scaled(run: Run) -> None:
    """The run scales the losses, and all workers skip a step that overflows."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scaler = GradScaler("cpu", init_scale=2.0**17, growth_interval=2)
    model, optimizer = run.prepare(model, optimizer, scaler=scaler)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            with torch.autocast("cpu", dtype=torch.float16):
                loss = functional.cross_entropy(model(inputs).float(), targets)
            step.backward(loss)
        run.print(step.skipped, scaler.get_scale())


@register_exact("Learned weights of losses")
def learned_weights(run: Run) -> None:
    """Trained parameters weight two losses (Kendall et al., 2018)."""
    model = nn.Linear(6, CLASSES + 6)
    model.register_parameter("spread", nn.Parameter(torch.zeros(2)))
    groups = [{"params": [model.weight, model.bias]}, {"params": [model.spread], "lr": 0.1}]
    optimizer = torch.optim.AdamW(groups, lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            outputs = model(inputs)
            losses = torch.stack(
                [
                    functional.cross_entropy(outputs[:, :CLASSES], targets),
                    functional.mse_loss(outputs[:, CLASSES:], inputs),
                ]
            )
            step.backward((losses * (-model.spread).exp() + model.spread).sum())


@register_exact("Diffusion", note="Timesteps and noise come from the global generator.")
def diffusion(run: Run) -> None:
    """A network learns to predict the noise in samples."""
    model = nn.Sequential(nn.Linear(7, 32), nn.SiLU(), nn.Linear(32, 6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, _ in step:
            time, noise = torch.rand(len(inputs), 1), torch.randn_like(inputs)
            angle = time * math.pi / 2
            noisy = angle.cos() * inputs + angle.sin() * noise
            step.backward(functional.mse_loss(model(torch.cat([noisy, time], dim=1)), noise))


@register_exact("Variational autoencoder")
def autoencoder(run: Run) -> None:
    """The loss is a reconstruction and a divergence, with a reparametrised sample."""
    model = nn.ModuleDict({"encoder": nn.Linear(6, 8), "decoder": nn.Linear(4, 6)})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, _ in step:
            mean, spread = model["encoder"](inputs).chunk(2, dim=1)
            drawn = mean + torch.randn_like(mean) * (0.5 * spread).exp()
            divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
            step.backward(functional.mse_loss(model["decoder"](drawn), inputs) + 0.1 * divergence)
