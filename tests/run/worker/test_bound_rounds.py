"""Rounds over data that is bound to sites train the bytes of a plain loop, and explain mistakes."""

from collections import Counter
from functools import partial
from typing import Any

import msgspec
import pytest
import torch
from torch import nn, optim
from torch.nn import functional

import elastane
from elastane.common.errors import BadInput
from elastane.run.nouns.spec import DataPosition, RunOrigin
from elastane.run.protocol.sampling import derive_random_key, find_sample_index
from elastane.run.worker import worker_settings
from elastane.run.worker.data.bound_data import BoundBatchSource
from elastane.run.worker.data.data_continuity import check_continuity
from elastane.run.worker.data.determinism import seed_everything
from elastane.run.worker.data.round_plans import bind_ranks, make_round_plan
from tests.pinned import SMALL_RUN

from .lessons import CLASSES, FEATURES, SEED, build_spec, make_samples

RANKS, STEPS, BATCH, ROUNDS = 4, 3, 8, 6
LENGTHS = {"eu": 37, "us": 11}
OPTIONS: dict[str, Any] = {"inner_steps": STEPS, "ranks": RANKS, "global_batch": BATCH, "until": ROUNDS}


def build_model() -> nn.Module:
    seed_everything(SEED)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, CLASSES))


def compute_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def prepare(**wishes: Any) -> tuple[Any, nn.Module]:
    worker_settings._settings = worker_settings.WorkerSettings(spec=build_spec(**wishes))
    run, model = elastane.join(), build_model()
    outer = elastane.outer.Nesterov(lr=0.7, momentum=0.9)
    run.prepare(model, optim.SGD(model.parameters(), lr=0.1), outer=outer)
    return run, model


def open_all() -> dict[str, Any]:
    return {site: partial(make_samples, length) for site, length in LENGTHS.items()}


def train_plain(delay: int) -> tuple[nn.Module, list[float]]:
    """Make the same rounds in a loop that knows nothing of Elastane but its seeds."""
    model = build_model()
    parameters = list(model.parameters())
    outer = elastane.outer.Nesterov(lr=0.7, momentum=0.9)([{"params": parameters}])
    losses = []
    earlier: list[Any] = []
    for number in range(1, ROUNDS + 1):
        begin = [parameter.detach().clone() for parameter in parameters]
        differences, total = [], 0.0
        for rank in range(RANKS):
            site, place, own = ("eu", "us")[rank // 2], rank % 2, BATCH // RANKS
            data, length = make_samples(LENGTHS[site]), LENGTHS[site]
            with torch.no_grad():
                for parameter, value in zip(parameters, begin, strict=True):
                    parameter.copy_(value)
            inner = optim.SGD(parameters, lr=0.1)
            for step in range(STEPS):
                first = ((number - 1) * STEPS + step) * own
                epochs = [divmod(p, len(range(place, length, 2))) for p in range(first, first + own)]
                indices = [find_sample_index(p * 2 + place, length, SEED, epoch) for epoch, p in epochs]
                seed_everything(derive_random_key(SEED, number, step * RANKS + rank))
                loss = compute_loss(model, data[indices])
                inner.zero_grad()
                loss.backward()
                inner.step()
                total += float(loss.detach().double()) * own
            differences.append([(b - p.detach()) / RANKS for b, p in zip(begin, parameters, strict=True)])
        handed = differences
        if delay:
            handed, earlier = earlier, differences
            if number == ROUNDS:
                both = zip(handed, earlier, strict=True)
                handed = [[a + b for a, b in zip(*pair, strict=True)] for pair in both]
        with torch.no_grad():
            for place, parameter in enumerate(parameters):
                parameter.copy_(begin[place])
                parameter.grad = None
                if handed:
                    first, second, third, fourth = (some[place] for some in handed)
                    parameter.grad = (first + second) + (third + fourth)
        outer.step()
        losses.append(total / (STEPS * BATCH))
    return model, losses


@pytest.mark.parametrize("delay", [0, 1])
def test_rounds_over_bound_data_train_the_bytes_of_a_plain_loop(delay):
    run, model = prepare()
    losses = []
    for round_ in run.rounds(open_all(), **OPTIONS, delay=delay):
        for step in round_:
            for batch in step:
                step.backward(compute_loss(model, batch))
        losses.append(round_.loss)
    plain, expected = train_plain(delay)
    torch.testing.assert_close(dict(model.state_dict()), dict(plain.state_dict()), rtol=0, atol=0)
    assert losses == pytest.approx(expected, rel=1e-12)


def make_source(sites: tuple[str, ...], data: Any = None) -> BoundBatchSource:
    plan = make_round_plan(0, STEPS, RANKS, BATCH, ROUNDS, seed=SEED)
    return BoundBatchSource(data or open_all(), bind_ranks(plan, LENGTHS, "wait"), sites, None)


def test_a_site_reads_each_of_its_samples_once_in_each_of_its_epochs():
    source = make_source(("eu", "us"))
    for site, length in LENGTHS.items():
        for epoch in range(3):
            seen: Counter[int] = Counter()
            for place, rank in enumerate(source._ranks[site]):
                share = len(range(place, length, 2))
                seen.update(
                    source._find_index(site, rank, p) for p in range(epoch * share, (epoch + 1) * share)
                )
            assert seen == Counter(range(length))


def test_a_worker_opens_only_the_data_of_its_sites():
    def refuse() -> Any:
        raise AssertionError("the data of another site was opened")

    source = make_source(("us",), {"eu": refuse, "us": partial(make_samples, 11)})
    assert source.own_ranks == (2, 3)
    assert source.load(1, 0).samples == 0
    assert source.load(1, 2).samples == BATCH // RANKS
    assert not source.can_check(1)


@pytest.mark.parametrize(
    ("data", "changes", "wishes", "words"),
    [
        ({}, {}, {}, "data of no site"),
        ({"EU 1": []}, {}, {}, "data of the site"),
        (None, {"absent": "redo"}, {}, "invalid absent"),
        (None, {"absent": "skip"}, {"copies": 2}, 'absent="skip" needs --copies all, not 2'),
        (None, {"ranks": 1, "global_batch": 1}, {}, "1 virtual ranks do not divide into 2 sites"),
        (None, {"until": "3 epochs"}, {}, "a number of epochs for data of several sites"),
        (None, {"loaders": 1}, {}, "loaders= with data of several sites"),
        (None, {"order": lambda epoch: [epoch]}, {}, "order= with data of several sites"),
        (None, {"delay": 1, "absent": "skip"}, {}, "delay=1 and absent='skip'"),
        (
            {"eu": partial(make_samples, 1)},
            {},
            {},
            "the dataset of site eu has 1 samples for 4 virtual ranks",
        ),
        (make_samples(9), {"absent": "skip"}, {}, "absent='skip' with one dataset"),
    ],
)
def test_bound_data_that_cannot_be_used_is_refused(data, changes, wishes, words):
    run, _ = prepare(**wishes)
    with pytest.raises(BadInput) as caught:
        next(run.rounds(open_all() if data is None else data, **OPTIONS | changes))
    assert words in str(caught.value)


def make_pinned(**changes):
    return msgspec.structs.replace(
        SMALL_RUN,
        virtual_ranks=RANKS,
        global_batch=BATCH,
        microbatch=2,
        dataset_length=0,
        steps=ROUNDS,
        seed=SEED,
        **changes,
    )


def make_origin(pinned, checkpoint):
    position = DataPosition(1, shards={0: 6})
    return RunOrigin(run="old", directory="", checkpoint=checkpoint, position=position, pinned=pinned)


def test_a_run_goes_on_from_another_one_only_with_its_sites():
    plan = bind_ranks(make_round_plan(0, STEPS, RANKS, BATCH, ROUNDS, seed=SEED), LENGTHS, "wait")
    origin = make_origin(make_pinned(rank_sites=("eu", "eu", "jp", "jp")), "step-1")
    with pytest.raises(BadInput, match="its data is bound to eu, jp, and now to eu, us"):
        check_continuity(origin, plan, {}, is_ordered=False)


def test_a_run_goes_on_from_a_step_of_another_one_only_with_the_data_of_its_sites():
    plan = bind_ranks(make_round_plan(0, STEPS, RANKS, BATCH, ROUNDS, seed=SEED), LENGTHS, "wait")
    pinned = make_pinned(rank_sites=plan.rank_sites, site_digests={"eu": "a", "us": "b"})
    origin = make_origin(pinned, "step-1")
    check_continuity(origin, plan, {"eu": "a"}, is_ordered=False)
    with pytest.raises(BadInput, match="the data of site eu has changed"):
        check_continuity(origin, plan, {"eu": "c"}, is_ordered=False)


def test_two_datasets_of_other_lengths_or_samples_have_other_digests():
    plan = bind_ranks(make_round_plan(0, STEPS, RANKS, BATCH, ROUNDS, seed=SEED), LENGTHS, "wait")
    data = {site: make_samples(length) for site, length in LENGTHS.items()}
    longer = {site: make_samples(length + 1) for site, length in LENGTHS.items()}
    first, again, other = (
        BoundBatchSource(samples, plan, ("eu",), None).site_digests for samples in (data, data, longer)
    )
    assert first == again
    assert first.keys() == other.keys() == {"eu"}
    assert first != other
