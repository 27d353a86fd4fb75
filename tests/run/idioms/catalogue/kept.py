"""Averages, targets and memories.

A script keeps values from step to step in the model or in `run.keep`. Any other variable starts from its
first value in a worker that joins.
"""

import copy
import math

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

import elastane
from elastane import Run

from .registry import register_exact, register_refused
from .samples import CLASSES, VECTORS, compute_fingerprint


@register_exact("`AveragedModel` (EMA)", note="Keep it in `run.keep`; update it between steps.", shown=True)
def ema(run: Run) -> None:
    """A module in `run.keep` has an exponential moving average of all parameters."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    run.keep["ema"] = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        run.keep["ema"].update_parameters(model)
    run.print("average", compute_fingerprint(*run.keep["ema"].parameters()))


@register_exact("EMA held in a variable", note="The variable and `run.keep` are the same module.")
def ema_in_a_variable(run: Run) -> None:
    """The script uses the module that it has put into `run.keep`."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    run.keep["ema"] = averaged
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        averaged.update_parameters(model)
    run.print("average", compute_fingerprint(*averaged.parameters()))


@register_exact("EMA as a dict of tensors")
def ema_as_a_dict(run: Run) -> None:
    """The average is a dict of tensors that the script itself updates."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for name, parameter in model.named_parameters():
        run.keep[name] = parameter.detach().clone()
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        for name, parameter in model.named_parameters():
            run.keep[name] = run.keep[name].lerp(parameter.detach(), 0.1)
    run.print("average", compute_fingerprint(*(run.keep[name] for name, _ in model.named_parameters())))


@register_exact(
    "Stochastic weight averaging with `SWALR`", note="Pass `SWALR` to `prepare`, or keep it in `run.keep`."
)
def swa(run: Run) -> None:
    """From step 5 on, the script averages the weights, with a constant learning rate."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=4)
    model, optimizer = run.prepare(model, optimizer, scheduler=scheduler)
    averaged = run.keep["swa"] = AveragedModel(model)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        if step.number >= 5:
            averaged.update_parameters(model)
    run.print("average", compute_fingerprint(*averaged.parameters()))


class Byol(nn.Module):
    """An online network, its predictor, and a target network that follows the online one."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
        self.predictor = nn.Linear(8, 8)
        self.target = copy.deepcopy(self.online).requires_grad_(requires_grad=False)

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = self.target(other)
        return 1 - functional.cosine_similarity(self.predictor(self.online(one)), wanted).mean()


@register_exact("Momentum encoder (BYOL, MoCo)", note="Update it between steps.", shown=True)
def momentum_encoder(run: Run) -> None:
    """The target network, a frozen part of the model, follows the online network after every step."""
    model = Byol()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, _ in step:
            one, other = (inputs + 0.1 * torch.randn_like(inputs) for _ in range(2))
            step.backward(model(one, other))
        for target, online in zip(model.target.parameters(), model.online.parameters(), strict=True):
            target.data.mul_(0.9).add_(online.data, alpha=0.1)


class QNetwork(nn.Module):
    """Values of actions, and an older copy of itself to learn from."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, CLASSES))
        self.target = copy.deepcopy(self.online).requires_grad_(requires_grad=False)


@register_exact("Target network copied every few steps (DQN)")
def target_copied(run: Run) -> None:
    """Every fourth step, the script copies the online network to the target network in the model."""
    model = QNetwork()
    optimizer = torch.optim.Adam(model.online.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for states, actions in step:
            chosen = model.online(states).gather(1, actions[:, None])[:, 0]
            with torch.no_grad():
                wanted = states.sum(1) + 0.9 * model.target(states.roll(1, dims=1)).max(1).values
            step.backward(functional.smooth_l1_loss(chosen, wanted))
        if step.number % 4 == 0:
            model.target.load_state_dict(model.online.state_dict())


@register_exact("Target network outside the model", note="Keep it in `run.keep`.")
def target_outside(run: Run) -> None:
    """The target network is a separate module, which the script updates between steps."""
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    target = copy.deepcopy(model).requires_grad_(requires_grad=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    run.keep["target"] = target
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for states, actions in step:
            chosen = model(states).gather(1, actions[:, None])[:, 0]
            with torch.no_grad():
                wanted = states.sum(1) + 0.9 * target(states.roll(1, dims=1)).max(1).values
            step.backward(functional.smooth_l1_loss(chosen, wanted))
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)


@register_exact("Queue of keys (MoCo)", note="Keep the tensor; fill it between steps.", shown=True)
def queue_kept(run: Run) -> None:
    """Negatives come from a queue of keys; after every step, the script adds those of a few samples."""
    model = nn.Linear(6, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = run.prepare(model, optimizer)
    run.keep["queue"] = torch.ones(16, 8) / math.sqrt(8)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, _ in step:
            one = functional.normalize(model(inputs), dim=1)
            other = functional.normalize(model(inputs + 0.1 * torch.randn_like(inputs)), dim=1)
            logits = torch.cat([(one * other).sum(1, keepdim=True), one @ run.keep["queue"].T], dim=1)
            step.backward(functional.cross_entropy(logits / 0.2, torch.zeros(len(inputs), dtype=torch.long)))
        with torch.no_grad():
            samples = VECTORS.tensors[0].roll(4 * step.number, dims=0)[:4]
            keys = functional.normalize(model(samples), dim=1)
        run.keep["queue"] = torch.cat([keys, run.keep["queue"][:-4]])


@register_exact("Replay buffer", note="Keep its tensors; write into them between steps.")
def replay_buffer(run: Run) -> None:
    """The script writes states and rewards between steps, and draws from them in the inner loop."""
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    states = run.keep["states"] = torch.zeros(32, 6)
    rewards = run.keep["rewards"] = torch.zeros(32)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            drawn = torch.randint(0, 32, (4,))
            replayed = functional.mse_loss(model(states[drawn])[:, 0], rewards[drawn])
            step.backward(functional.mse_loss(model(inputs)[:, 0], targets.float()) + replayed)
        place = step.number % 32
        with torch.no_grad():
            states[place] = torch.full((6,), float(step.number))
            rewards[place] = model(states[place]).squeeze() * 0.9 + 1.0


@register_exact("Running statistics kept as tensors")
def statistics_kept(run: Run) -> None:
    """The scale of the loss is a running mean of `step.loss`, kept as a tensor."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = run.prepare(model, optimizer)
    run.keep["scale"] = torch.ones(())
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets) / run.keep["scale"])
        run.keep["scale"] = 0.9 * run.keep["scale"] + 0.1 * step.loss


@register_exact("Best score and its step", note="`run.keep` takes numbers, strings, lists and dicts.")
def numbers_kept(run: Run) -> None:
    """The script remembers its best loss, the step of that loss, and a history."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    run.keep["best"], run.keep["history"] = {"loss": math.inf, "step": 0}, []
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        if step.loss < run.keep["best"]["loss"]:
            run.keep["best"] = {"loss": step.loss, "step": step.number}
        run.keep["history"] = [*run.keep["history"], round(step.loss, 3)]
    run.print("best", run.keep["best"]["step"], *run.keep["history"])


@register_exact("The best weights", note="Keep the copy; a worker that joins receives its tensors.")
def best_weights(run: Run) -> None:
    """After the last step, the script copies the weights with the smallest loss back into the model."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer = run.prepare(model, optimizer)
    best = run.keep["weights"] = copy.deepcopy(model)
    run.keep["loss"] = math.inf
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        if step.loss < run.keep["loss"]:
            run.keep["loss"] = step.loss
            best.load_state_dict(model.state_dict())
        if step.last:
            model.load_state_dict(best.state_dict())


@register_exact("Early stopping", note="`elastane.EarlyStopping` keeps its counters in `run.keep`.")
def early_stopping(run: Run) -> None:
    """The run ends when the loss has not improved for some steps."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    stopper = elastane.EarlyStopping(run, patience=9, min_delta=10.0)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=40):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        stopper.update(step.loss)


@register_exact(
    "A rollout made between steps (PPO)", note="Keep its tensors: a worker that joins needs them.", shown=True
)
def rollout(run: Run) -> None:
    """After every third step, the script makes a rollout with the policy; the next steps learn from it."""
    policy = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    policy, optimizer = run.prepare(policy, optimizer)
    states, answers = VECTORS.tensors
    run.keep["chances"] = torch.full((len(states), CLASSES), 1 / CLASSES)
    numbers = torch.arange(len(states))
    for step in run.steps(numbers, global_batch=8, microbatch=2, until=12):
        for chosen in step:
            actions = torch.multinomial(run.keep["chances"][chosen], 1)
            before = run.keep["chances"][chosen].gather(1, actions)[:, 0]
            now = policy(states[chosen]).softmax(1).gather(1, actions)[:, 0]
            advantage = (actions[:, 0] == answers[chosen]).float() - 0.25
            ratio = now / before
            step.backward(-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean())
        if step.number % 3 == 0:
            with torch.no_grad():
                run.keep["chances"] = policy(states).softmax(1)


@register_exact("A schedule with its own interval", note="Keep the schedule and step it between steps.")
def schedule_kept(run: Run) -> None:
    """The script steps a schedule every third step."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer = run.prepare(model, optimizer)
    scheduler = run.keep["schedule"] = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        if step.number % 3 == 0:
            scheduler.step()


@register_refused(
    "`run.keep` changed in the inner loop",
    "inside a step",
    instead="Change it after the inner loop, from `step.loss` or the sums of an evaluation.",
)
def kept_inside(run: Run) -> None:
    """The script adds the loss of each microbatch to a number in `run.keep`."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    run.keep["total"] = 0.0
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            loss = functional.cross_entropy(model(inputs), targets)
            run.keep["total"] += loss.item()
            step.backward(loss)


@register_refused(
    "A kept tensor or module changed in the inner loop",
    "inside a step",
    instead="Change it after the inner loop.",
)
def kept_tensor_inside(run: Run) -> None:
    """The script writes into a kept tensor in each microbatch."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    total = run.keep["total"] = torch.zeros(())
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            loss = functional.cross_entropy(model(inputs), targets)
            total += loss.detach()
            step.backward(loss)


@register_exact(
    "Kept values read before the inner loop",
    note="A worker that joins receives the values when the script reads them: it joins first.",
)
def kept_read_ahead(run: Run) -> None:
    """Before the inner loop, the script reads a temperature that follows the loss, and draws noise."""
    model = nn.Linear(6, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    run.keep["temperature"] = 1.0
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        temperature = run.keep["temperature"] + 0.01 * run.step
        shift = 0.1 * torch.randn(6)
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs + shift) / temperature, targets))
        run.keep["temperature"] = 0.9 * run.keep["temperature"] + 0.1 * step.loss
