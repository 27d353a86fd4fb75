"""Changing the model between two steps.

Code after the inner loop runs on every worker, on the same state. Its changes become part of the state:
those of parameters, buffers, frozen parameters, hyperparameters and the optimizer's state.
"""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune

from elastane import Run

from .registry import register_exact, register_refused
from .samples import CLASSES, VECTORS


@register_exact("Weight clipping (WGAN)", note="After the inner loop.", shown=True)
def weight_clipping(run: Run) -> None:
    """The script clips the weights of a Wasserstein critic after every step."""
    critic = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    optimizer = torch.optim.RMSprop(critic.parameters(), lr=0.01)
    critic, optimizer = run.prepare(critic, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for real, _ in step:
            fake = torch.randn_like(real)
            step.backward(critic(fake).mean() - critic(real).mean())
        for parameter in critic.parameters():
            parameter.data.clamp_(-0.1, 0.1)


@register_exact("Weight clipping under `no_grad`")
def weight_clipping_without_data(run: Run) -> None:
    """The script does the same without `.data`."""
    critic = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(critic.parameters(), lr=0.01)
    critic, optimizer = run.prepare(critic, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for real, _ in step:
            fake = torch.randn_like(real)
            step.backward(critic(fake).mean() - critic(real).mean())
        with torch.no_grad():
            for parameter in critic.parameters():
                parameter.clamp_(-0.1, 0.1)


@register_exact("Max-norm constraint")
def max_norm(run: Run) -> None:
    """The script projects the rows of each weight back into a ball after every step."""
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        with torch.no_grad():
            for layer in (model[0], model[2]):
                layer.weight.copy_(torch.renorm(layer.weight, p=2, dim=0, maxnorm=0.5))


@register_exact("Weight decay by hand")
def decay_by_hand(run: Run) -> None:
    """The script shrinks all weights a little after every step."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.995)


@register_exact("Spectral normalisation by hand")
def spectral_norm_by_hand(run: Run) -> None:
    """The script divides a weight by its largest singular value if that exceeds one."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        with torch.no_grad():
            weight = model[0].weight
            weight.div_(torch.linalg.matrix_norm(weight, ord=2).clamp(min=1.0))


@register_exact("Pruning masks applied by hand")
def pruning_by_hand(run: Run) -> None:
    """From step 4 on, the script sets the smallest half of a weight to zero."""
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        if step.number >= 4:
            with torch.no_grad():
                weight = model[0].weight
                weight.mul_(weight.abs() >= weight.abs().median())


@register_exact(
    "`torch.nn.utils.prune`",
    note="Before `prepare`: it replaces the parameter and adds the mask as a buffer.",
)
def pruning_by_torch(run: Run) -> None:
    """The script prunes a layer before the training, and trains it with its mask."""
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


@register_exact("Pruning mask written between steps", note="Prune before `prepare` with an amount of 0.")
def pruning_mask(run: Run) -> None:
    """The mask of `torch.nn.utils.prune` is a buffer, into which the script writes at step 5."""
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    prune.identity(model[0], "weight")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        if step.number == 5:
            weight = model[0].weight_orig.detach().abs()
            model[0].weight_mask.copy_(weight >= weight.median())


@register_exact(
    "Dead units initialised again", note="Random numbers drawn between steps are the same on all workers."
)
def dead_units(run: Run) -> None:
    """After every fourth step, the unit with the smallest weights gets new ones from the global generator."""
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        if step.number % 4 == 0:
            weight = model[0].weight
            with torch.no_grad():
                weight[weight.norm(dim=1).argmin()] = torch.randn(6) / 6


@register_exact(
    "Noise on the weights",
    note="A generator of your own is exact if you seed it with the number of the step.",
)
def noise_on_weights(run: Run) -> None:
    """The script adds noise to all weights after every step (Langevin dynamics)."""
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        generator = torch.Generator().manual_seed(step.number)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.01)


@register_exact("Learning rate set by hand", shown=True)
def learning_rate_by_hand(run: Run) -> None:
    """The script sets the learning rate of each group from the number of the step."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "weight_decay": 0.1}]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * 0.9**step.number


@register_exact("Momentum and weight decay set by hand")
def hyperparameters_by_hand(run: Run) -> None:
    """The script raises the momentum and lowers the weight decay from step to step."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5, weight_decay=0.1)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        optimizer.param_groups[0]["momentum"] = min(0.9, 0.5 + 0.05 * step.number)
        optimizer.param_groups[0]["weight_decay"] = 0.1 / step.number


@register_exact("Average of the weights in a buffer", shown=True)
def average_in_a_buffer(run: Run) -> None:
    """A buffer of the model has an exponential moving average of a weight."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    model.register_buffer("average", model[0].weight.detach().clone())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        model.average.lerp_(model[0].weight.detach(), 0.1)


@register_exact(
    "Optimizer state cleared",
    note="Between steps, for example when a schedule restarts. With `--copies N` the state is in shards.",
    unsharded="optimizer.state",
)
def moments_cleared(run: Run) -> None:
    """The script sets Adam's moments to zero halfway."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        if step.number == 6:
            for parameter in model.parameters():
                if state := optimizer.state[parameter]:
                    state["exp_avg"].zero_()
                    state["exp_avg_sq"].zero_()


@register_exact(
    "Gradual unfreezing",
    note="Call `prepare` while all layers require gradients, and freeze some afterwards.",
    shown=True,
)
def gradual_unfreezing(run: Run) -> None:
    """The script freezes the lower layer for the first steps, and trains it later."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    model[0].requires_grad_(requires_grad=False)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        if step.number == 6:
            model[0].requires_grad_(requires_grad=True)


@register_exact("Freezing a layer during the training")
def freezing_later(run: Run) -> None:
    """The script freezes the lower layer after step 5."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        if step.number == 5:
            model[0].requires_grad_(requires_grad=False)


@register_refused(
    "Unfreezing a layer that was frozen at `prepare`",
    "requires_grad",
    instead="Call `prepare` while all layers that will be trained require gradients; freeze them afterwards.",
)
def unfreezing(run: Run) -> None:
    """The script trains a layer that was frozen when it called `prepare`."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    model[0].requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        if step.number == 4:
            model[0].requires_grad_(requires_grad=True)


@register_refused(
    "`add_param_group` after `prepare`",
    "parameter group",
    instead="Add all groups before `prepare`; after it, freeze those that are to be trained later.",
)
def adding_a_group(run: Run) -> None:
    """The script gives the optimizer another layer during the training."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model[2].parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        if step.number == 4:
            optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.01})


@register_refused(
    "A new tensor assigned to `.data`",
    ".data",
    instead="Write into the parameter: `parameter.data.copy_(new)`, or `copy_` under `no_grad`.",
)
def data_assigned(run: Run) -> None:
    """The script replaces the storage of a trained parameter."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        if step.number == 4:
            model[0].weight.data = model[0].weight.data * 0.5


@register_refused(
    "`vector_to_parameters`",
    ".data",
    instead="Write into each parameter with `copy_`.",
)
def vector_written_back(run: Run) -> None:
    """The script makes one vector of all parameters, changes it and writes it back."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        if step.number == 4:
            vector = nn.utils.parameters_to_vector(model.parameters())
            nn.utils.vector_to_parameters(vector * 0.9, model.parameters())


@register_refused(
    "Another data type during the training",
    ".data",
    instead="Choose the type before the optimizer is built, or use autocast.",
)
def type_changed(run: Run) -> None:
    """The model is cast to bf16 between two steps."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs.to(model[0].weight.dtype)), targets))
        if step.number == 4:
            model.to(torch.bfloat16)
