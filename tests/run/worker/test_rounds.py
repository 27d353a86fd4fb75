"""Rounds of inner steps train the bytes of a plain loop, and explain mistakes."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional

import elastane
from elastane.common.errors import BadInput, RunFailed
from elastane.run.protocol.sampling import derive_random_key, find_sample_index, find_step_samples
from elastane.run.worker import assembly, worker_settings
from elastane.run.worker.data.determinism import seed_everything
from elastane.run.worker.state.placement import Mirrored

from .lessons import CLASSES, FEATURES, SEED, build_adamw, build_spec, make_samples

RANKS, STEPS, BATCH = 4, 3, 8
NESTEROV = elastane.outer.Nesterov(lr=0.7, momentum=0.9)


def build_plain_model() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, CLASSES))


def build_model_with_buffers() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, CLASSES))


def decay(optimizer: optim.Optimizer) -> Any:
    return optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))


@dataclass(frozen=True)
class Case:
    """A training in rounds.

    Args:
        length: samples of the dataset; 52 end each epoch with a short round and a short inner step.
        microbatch: samples of one pass.
    """

    model: Callable[[], nn.Module] = build_plain_model
    optimizer: Callable[[nn.Module], optim.Optimizer] = build_adamw
    outer: Callable[[Any], optim.Optimizer] = NESTEROV
    scheduler: Callable[[optim.Optimizer], Any] | None = decay
    clip: float | None = 0.5
    length: int = 52
    rounds: int = 7
    microbatch: int = BATCH // RANKS
    inner_state: str = "fresh"
    delay: int = 0


@dataclass
class Trained:
    model: nn.Module
    optimizer: optim.Optimizer
    losses: list[float]
    run: Any = None


def compute_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return functional.cross_entropy(model(batch[0]), batch[1])


def prepare(case: Case, **wishes: Any) -> Trained:
    """Prepare a run; ``wishes`` are fields of its spec."""
    worker_settings._settings = worker_settings.WorkerSettings(spec=build_spec(**wishes))
    run = elastane.join()
    model = case.model()
    optimizer = case.optimizer(model)
    scheduler = case.scheduler(optimizer) if case.scheduler else None
    run.prepare(
        model,
        optimizer,
        scheduler=scheduler,
        clip_grad_norm=case.clip,
        outer=case.outer,
        inner_state=case.inner_state,
    )
    return Trained(model, optimizer, [], run)


def begin_rounds(trained: Trained, case: Case, **changes: Any) -> Any:
    options = {"inner_steps": STEPS, "ranks": RANKS, "global_batch": BATCH, "until": case.rounds}
    options |= {"microbatch": case.microbatch, "delay": case.delay} | changes
    return trained.run.rounds(make_samples(case.length), **options)


def train_in_rounds(case: Case, wire: str = "full", **wishes: Any) -> Trained:
    trained = prepare(case, **wishes)
    for round_ in begin_rounds(trained, case, wire=wire):
        for step in round_:
            for batch in step:
                step.backward(compute_loss(trained.model, batch))
        trained.losses.append(round_.loss)
    return trained


def train_plain(case: Case) -> Trained:
    """Make the same rounds in a loop that knows nothing of Elastane but its seeds."""
    seed_everything(SEED)
    model, data = case.model(), make_samples(case.length)
    parameters = list(model.parameters())
    outer = case.outer([{"params": parameters}])
    losses, steps_before = [], 0
    state: dict[Any, dict[str, torch.Tensor]] = {}
    earlier: list[list[torch.Tensor]] = []
    for number in range(1, case.rounds + 1):
        samples = find_step_samples(number, case.length, STEPS * BATCH)
        begin = {name: value.clone() for name, value in model.state_dict().items()}
        leaves, changes, terms, states = [], [], [], []
        for rank in range(RANKS):
            model.load_state_dict(begin)
            optimizer = case.optimizer(model)
            if case.inner_state == "averaged":
                optimizer.state.update(
                    {p: {k: t.clone() for k, t in kept.items()} for p, kept in state.items()}
                )
            scheduler = case.scheduler(optimizer) if case.scheduler else None
            for _ in range(steps_before if scheduler else 0):
                optimizer._opt_called = True
                scheduler.step()
            seen = total = 0
            for step in range(STEPS):
                passes = BATCH // RANKS // case.microbatch
                parts = range((step * RANKS + rank) * passes, (step * RANKS + rank + 1) * passes)
                positions = [samples.list_positions(part, case.microbatch) for part in parts]
                size = sum(map(len, positions))
                if not size:
                    break
                optimizer.zero_grad()
                for part, own in zip(parts, positions, strict=True):
                    if not own:
                        continue
                    indices = [find_sample_index(p, case.length, SEED, samples.epoch) for p in own]
                    seed_everything(derive_random_key(SEED, number, part))
                    loss = compute_loss(model, data[indices])
                    (loss * (len(own) / size)).backward()
                    seen, total = seen + len(own), total + loss.detach().double() * len(own)
                if case.clip is not None:
                    nn.utils.clip_grad_norm_(parameters, case.clip)
                optimizer.step()
                if scheduler:
                    scheduler.step()
            share = seen / samples.count
            names = [name for name, _ in model.named_parameters()]
            leaves.append([(begin[n] - p.detach()) * share for n, p in zip(names, parameters, strict=True)])
            changes.append({n: b - begin[n] for n, b in model.named_buffers()} if seen else None)
            states.append(optimizer.state if seen else None)
            terms.append(float(total))
        model.load_state_dict(begin)
        handed = leaves
        if case.delay:
            handed, earlier = earlier, leaves
            if number == case.rounds:
                handed = [
                    [a + b for a, b in zip(*both, strict=True)] for both in zip(handed, leaves, strict=True)
                ]
        first, second, third, fourth = handed or [[None] * len(parameters)] * RANKS
        for number_, parameter in enumerate(parameters):
            parameter.grad = None
            if handed:
                pairs = (first[number_] + second[number_]), (third[number_] + fourth[number_])
                parameter.grad = pairs[0] + pairs[1]
        outer.step()
        filled = [change for change in changes if change is not None]
        state = average([own for own in states if own is not None])
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                total_change = sum(change[name] for change in filled)
                buffer.copy_(begin[name] + total_change / len(filled))
        steps_before += -(-samples.count // BATCH)
        losses.append(sum(terms) / samples.count)
    optimizer = case.optimizer(model)
    scheduler = case.scheduler(optimizer) if case.scheduler else None
    for _ in range(steps_before if scheduler else 0):
        optimizer._opt_called = True
        scheduler.step()
    return Trained(model, optimizer, losses)


def average(states: list[Any]) -> dict[Any, dict[str, torch.Tensor]]:
    """Return the means of the states of one, two or four virtual ranks, added in the order of the tree."""
    count = len(states)
    while len(states) > 1:
        states = [
            {p: {key: tensor + right[p][key] for key, tensor in own.items()} for p, own in left.items()}
            for left, right in zip(states[::2], states[1::2], strict=True)
        ]
    return {p: {key: tensor / count for key, tensor in own.items()} for p, own in states[0].items()}


def assert_same(elastic: Trained, plain: Trained) -> None:
    states = [dict(trained.model.state_dict()) for trained in (elastic, plain)]
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)
    assert elastic.losses == pytest.approx(plain.losses, rel=1e-12)
    rates = [trained.optimizer.param_groups[0]["lr"] for trained in (elastic, plain)]
    assert rates[0] == rates[1]


@pytest.mark.parametrize(
    "case",
    [
        Case(),
        Case(outer=functools.partial(optim.SGD, lr=1.0), scheduler=None, clip=None),
        Case(optimizer=lambda model: optim.SGD(model.parameters(), lr=0.1, momentum=0.9), length=96),
        Case(optimizer=lambda model: optim.Adagrad(model.parameters(), lr=0.1)),
        Case(microbatch=1, length=51),
        Case(inner_state="averaged"),
        Case(
            inner_state="averaged",
            optimizer=lambda model: optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        ),
        Case(inner_state="averaged", optimizer=lambda model: optim.Adagrad(model.parameters(), lr=0.1)),
        Case(delay=1),
    ],
    ids=[
        "nesterov",
        "average",
        "sgd",
        "adagrad",
        "several passes",
        "averaged",
        "averaged sgd",
        "averaged adagrad",
        "delayed",
    ],
)
def test_rounds_train_the_bytes_of_a_plain_loop(case):
    assert_same(train_in_rounds(case), train_plain(case))


def test_weights_divide_the_gradient_of_an_inner_step_by_their_sum():
    case = Case(clip=None, microbatch=1, length=96)
    means = prepare(case)
    for round_ in begin_rounds(means, case):
        list(compute_all(means, round_))
        means.losses.append(round_.loss)
    sums = prepare(case)
    for round_ in begin_rounds(sums, case):
        for step in round_:
            for batch in step:
                step.backward(4 * compute_loss(sums.model, batch), weight=torch.tensor(4.0))
        sums.losses.append(round_.loss)
    assert sums.losses == means.losses


@pytest.mark.parametrize(
    "case",
    [Case(model=build_model_with_buffers, inner_state="averaged"), Case(delay=1)],
    ids=["averaged", "delayed"],
)
def test_sharded_and_mirrored_rounds_train_the_same_bytes(case, monkeypatch):
    whole, sharded = train_in_rounds(case), train_in_rounds(case, copies=2)
    assert whole.run.digest.parameters == sharded.run.digest.parameters
    monkeypatch.setattr(assembly, "choose_placement", Mirrored)
    assert train_in_rounds(case).run.digest == whole.run.digest


def test_buffers_take_the_mean_of_what_virtual_ranks_have_changed():
    case = Case(model=build_model_with_buffers, length=96)
    elastic, plain = train_in_rounds(case), train_plain(case)
    torch.testing.assert_close(dict(elastic.model.state_dict()), dict(plain.model.state_dict()))
    assert int(elastic.model[1].num_batches_tracked) == case.rounds * STEPS


def test_two_wires_train_different_bytes_and_learn_alike(monkeypatch):
    full, int8 = train_in_rounds(Case()), train_in_rounds(Case(), wire="int8")
    with monkeypatch.context() as patch:
        patch.setattr(assembly, "choose_placement", Mirrored)
        assert train_in_rounds(Case(), wire="int8").run.digest == int8.run.digest
    assert full.run.digest != int8.run.digest
    assert int8.losses == pytest.approx(full.losses, rel=0.02)


def test_the_rates_of_a_schedule_and_those_set_by_hand_between_rounds_hold():
    case = Case(scheduler=None)
    trained = prepare(case)
    for round_ in begin_rounds(trained, case):
        assert [step.number for step in compute_all(trained, round_)] == expected_numbers(round_)
        trained.optimizer.param_groups[0]["lr"] = 0.05 * 0.5**round_.number
    assert round_.learning_rates == (0.05 * 0.5 ** (case.rounds - 1),)
    assert not trained.optimizer.state


def compute_all(trained, round_):
    """Yield the inner steps of a round after their backward passes."""
    for step in round_:
        for batch in step:
            step.backward(compute_loss(trained.model, batch))
            trained.run.log(rows=len(batch[0]))
        if not step.rehearses:
            yield step


def expected_numbers(round_):
    """Return the inner steps of each virtual rank: 24 samples for three, and 4 at the end of an epoch."""
    short = round_.number % 3 == 0
    return [1, 1] if short else [1, 2, 3] * RANKS


def test_a_delayed_round_has_all_its_inner_steps():
    case = Case(delay=1, scheduler=None)
    trained = prepare(case)
    for round_ in begin_rounds(trained, case):
        assert [step.number for step in compute_all(trained, round_)] == expected_numbers(round_)


def test_values_that_inner_steps_log_are_means_over_the_samples_of_the_round():
    case = Case()
    trained = prepare(case)
    for round_ in begin_rounds(trained, case):
        list(compute_all(trained, round_))
        assert round_.means == {"rows": 2.0}
        assert round_.samples == (4 if round_.number % 3 == 0 else 24)


def test_a_frozen_layer_stays_although_the_outer_optimizer_has_momentum():
    case = Case(optimizer=lambda model: optim.SGD(model.parameters(), lr=0.1))
    trained = prepare(case)
    for round_ in begin_rounds(trained, case):
        list(compute_all(trained, round_))
        if round_.number == 3:
            trained.model[0].requires_grad_(requires_grad=False)
            kept = trained.model[0].weight.detach().clone()
        trained.model[3].bias.data.clamp_(-0.1, 0.1)
    assert torch.equal(trained.model[0].weight, kept)
    assert trained.model[3].bias.abs().max() <= 0.1


def test_a_site_that_joins_fetches_all_outer_state_in_its_first_round():
    """In portions, as between short steps, it would also fetch new values of the rest after each round."""
    member = train_in_rounds(Case(rounds=1)).run._trainer.reactor.member
    assert member.layout.fetch_bytes > 1 << 40


def test_an_evaluation_between_rounds_sees_the_committed_model():
    case = Case()
    trained = prepare(case)
    sums = []
    for round_ in begin_rounds(trained, case):
        list(compute_all(trained, round_))
        score = trained.run.evaluate(make_samples(12), microbatch=4)
        for inputs, _ in score:
            with torch.no_grad():
                score.add(total=trained.model.eval()(inputs).sum())
        trained.model.train()
        with torch.no_grad():
            outputs = [trained.model.eval()(make_samples(12).tensors[0][n : n + 4]) for n in (0, 4, 8)]
        trained.model.train()
        sums.append((score.sums["total"], sum(float(o.double().sum()) for o in outputs)))
    assert [one for one, _ in sums] == pytest.approx([other for _, other in sums])


# -- mistakes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"until": "10 steps"}, "invalid until: '10 steps'"),
        ({"until": 0}, "invalid until: 0"),
        ({"ranks": 3}, "a global batch of 8 does not divide into 3 virtual ranks"),
        ({"microbatch": 3}, "a microbatch of 3 does not divide the 2 samples of an inner step"),
        ({"inner_steps": 0}, "run.rounds was given an invalid inner_steps: 0"),
        ({"wire": "fp8"}, "run.rounds was given an invalid wire: 'fp8'"),
        ({"wire": "int8", "group": 3}, "group=3 for 4 virtual ranks"),
        ({"wire": "int8", "group": 8}, "group=8 for 4 virtual ranks"),
        ({"delay": 2}, "run.rounds was given an invalid delay: 2"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(changes, message):
    case = Case()
    with pytest.raises(BadInput, match=message):
        next(begin_rounds(prepare(case), case, **changes))


def test_averaged_state_and_a_delay_need_what_they_can_carry():
    with pytest.raises(BadInput, match="the state of NAdam cannot be averaged"):
        prepare(Case(inner_state="averaged", optimizer=lambda model: optim.NAdam(model.parameters())))
    with pytest.raises(BadInput, match="invalid inner_state: 'carried'"):
        prepare(Case(inner_state="carried"))
    with pytest.raises(BadInput, match=r"delay=1, and 1.running_mean changes in each round"):
        next(begin_rounds(prepare(case := Case(model=build_model_with_buffers, delay=1)), case))
    trained = prepare(case := Case(delay=1, scheduler=None))
    rounds = begin_rounds(trained, case)
    list(compute_all(trained, next(rounds)))
    trained.model[0].requires_grad_(requires_grad=False)
    with pytest.raises(BadInput, match="the script changed the model between two rounds"):
        list(compute_all(trained, next(rounds)))


@pytest.mark.parametrize("outer", [elastane.outer.Nesterov, 0.7, lambda groups: optim.SGD(groups[:0], lr=1)])
def test_an_outer_that_builds_no_optimizer_is_refused(outer):
    with pytest.raises((BadInput, ValueError), match=r"invalid outer|empty parameter list"):
        prepare(Case(outer=outer))


def test_each_loop_needs_its_own_prepare():
    case = Case()
    trained = prepare(case)
    with pytest.raises(BadInput, match=r"run.steps was called, and run.prepare was given an outer optimizer"):
        next(trained.run.steps(make_samples(), global_batch=8, microbatch=2, until=1))
    model = case.model()
    run = get_other_run()
    run.prepare(model, build_adamw(model))
    with pytest.raises(BadInput, match=r"run.rounds was called, and run.prepare was given no outer"):
        next(run.rounds(make_samples(), inner_steps=1, ranks=1, global_batch=1, until=1))


def get_other_run():
    worker_settings._settings = worker_settings.WorkerSettings(spec=build_spec())
    return elastane.join()


def test_a_scaler_lbfgs_and_a_stream_are_refused():
    model = build_plain_model()
    with pytest.raises(BadInput, match="a scaler and an outer optimizer"):
        get_other_run().prepare(model, build_adamw(model), scaler=torch.amp.GradScaler("cpu"), outer=NESTEROV)
    with pytest.raises(BadInput, match="LBFGS"):
        prepare(Case(optimizer=lambda model: optim.LBFGS(model.parameters()), scheduler=None))
    with pytest.raises(BadInput, match="no samples by position"):
        next(
            prepare(Case()).run.rounds(
                lambda shard, shards: iter([]), inner_steps=1, ranks=1, global_batch=1, until=1
            )
        )


def test_mistakes_in_the_loop_are_refused_in_words():
    case = Case(scheduler=None)

    def make_first_step(do: Any) -> None:
        trained = prepare(case)
        for round_ in begin_rounds(trained, case):
            for step in round_:
                for batch in step:
                    do(trained, round_, step, batch)

    with pytest.raises(BadInput, match=r"a microbatch was taken without step\.backward"):
        make_first_step(lambda *_: None)
    with pytest.raises(BadInput, match="the script called backward of a round"):
        make_first_step(lambda t, r, s, b: r.backward(compute_loss(t.model, b)))
    with pytest.raises(BadInput, match=r"optimizer.step\(\) was called by the script"):
        make_first_step(lambda t, r, s, b: (s.backward(compute_loss(t.model, b)), t.optimizer.step()))
    with pytest.raises(BadInput, match=r"zero_grad\(\) was called by the script"):
        make_first_step(lambda t, r, s, b: t.optimizer.zero_grad())

    def set_rate(trained: Any, _round: Any, step: Any, batch: Any) -> None:
        step.backward(compute_loss(trained.model, batch))
        if not step.rehearses:
            trained.optimizer.param_groups[0]["lr"] = 1.0

    with pytest.raises(BadInput, match="a hyperparameter of the optimizer was changed inside a step"):
        make_first_step(set_rate)

    def mix(trained: Any, _round: Any, step: Any, batch: Any) -> None:
        step.backward(compute_loss(trained.model, batch), weight=None if len(seen) % 2 else 1.0)
        seen.append(batch)

    case, seen = Case(scheduler=None, microbatch=1), []
    with pytest.raises(BadInput, match="a weight for some microbatches of an inner step and none for others"):
        make_first_step(mix)

    def diverge(trained: Any, _round: Any, step: Any, batch: Any) -> None:
        step.backward(compute_loss(trained.model, batch) * (1.0 if step.rehearses else float("nan")))

    with pytest.raises(RunFailed, match="the loss of step 1, virtual rank 0 is nan"):
        make_first_step(diverge)
