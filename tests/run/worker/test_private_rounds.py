"""Rounds with privacy: clipped differences with noise that only their site can compute, nothing else."""

import hashlib
import math
import struct
from collections import Counter
from functools import partial
from importlib.util import find_spec
from typing import Any

import msgspec
import pytest
import torch
from torch import nn, optim
from torch.nn import functional

import elastane
from elastane.common.errors import BadInput, RunFailed
from elastane.run.worker import worker_settings
from elastane.run.worker.data.bound_data import BoundBatchSource
from elastane.run.worker.data.determinism import seed_everything
from elastane.run.worker.data.round_plans import bind_ranks, make_round_plan
from elastane.run.worker.privacy import Privacy, count_uses, describe_privacy
from elastane.run.worker.state.difference_noise import DifferenceNoise, draw_normals

from .lessons import CLASSES, FEATURES, SEED, build_spec, make_samples

RANKS, STEPS, BATCH, ROUNDS = 4, 3, 8, 5
LENGTHS = {"eu": 37, "us": 30}
CLIP, NOISE = 0.05, 2.0
OPTIONS: dict[str, Any] = {"inner_steps": STEPS, "ranks": RANKS, "global_batch": BATCH, "until": ROUNDS}


@pytest.fixture
def privacy(tmp_path):
    for site in LENGTHS:
        (tmp_path / f"{site}.secret").write_bytes(site.encode() * 16)
    return Privacy(clip=CLIP, noise=NOISE, secret=f"{tmp_path}/{{site}}.secret")


@pytest.fixture(autouse=True)
def accountant(monkeypatch):
    """Compute epsilon by the exact formula where Opacus is not installed: a landing needs no such package."""
    if find_spec("opacus") is None:
        monkeypatch.setattr(Privacy, "compute_epsilon", compute_exact_epsilon)


def compute_exact_epsilon(privacy: Privacy, uses: int) -> float:
    mu = math.sqrt(uses) * 2 / privacy.noise
    return next(n / 100 for n in range(1, 10_000) if find_delta(n / 100, mu) <= privacy.delta)


def build_model() -> nn.Module:
    seed_everything(SEED)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES), nn.Linear(3, 2))


def compute_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    # The last layer has no gradient.
    return functional.cross_entropy(model[:3](batch[0]), batch[1])


def prepare(model: nn.Module | None = None, **wishes: Any) -> tuple[Any, nn.Module]:
    worker_settings._settings = worker_settings.WorkerSettings(spec=build_spec(**wishes))
    run, model = elastane.join(), model or build_model()
    run.prepare(model, optim.SGD(model.parameters(), lr=0.1), outer=partial(optim.SGD, lr=1.0))
    return run, model


def open_all() -> dict[str, Any]:
    return {site: partial(make_samples, length) for site, length in LENGTHS.items()}


def train(
    privacy: Privacy | None, *, log: bool = False, **changes: Any
) -> tuple[nn.Module, list[float], Any]:
    run, model = prepare()
    losses = []
    for round_ in run.rounds(open_all(), **OPTIONS | changes, privacy=privacy):
        for step in round_:
            for batch in step:
                step.backward(compute_loss(model, batch))
                if log:
                    run.log(rows=len(batch[0]))
        losses.append(round_.loss)
    return model, losses, run


def add_noise_plainly(difference: list[Any], site: str, rank: int, number: int) -> list[torch.Tensor]:
    """Return a difference with noise, by the rule that the documentation of the run states."""
    key = hashlib.sha256(site.encode() + b"\0" + site.encode() * 16).digest()
    norm = math.sqrt(sum(float(d.double().square().sum()) for d in difference))
    most = CLIP * (1 - 2.0**-20)
    clipped = [d * (most / norm) if norm > most else d for d in difference]
    content = b"".join(d.contiguous().numpy().tobytes() for d in difference)
    place = struct.pack("<qqdd", rank, number, CLIP, CLIP * NOISE)
    seed = hashlib.blake2b(place + content, key=key, digest_size=32).digest()
    seeds = [seed + struct.pack("<q", number) for number in range(len(clipped))]
    normals = [draw_normals(s, d.numel()).view(d.shape) for s, d in zip(seeds, clipped, strict=True)]
    return [(d.double() + CLIP * NOISE * own).float() for d, own in zip(clipped, normals, strict=True)]


@pytest.mark.parametrize("delay", [0, 1])
def test_private_rounds_train_the_bytes_of_a_plain_loop_that_adds_the_noise(privacy, delay, monkeypatch):
    plain: dict[tuple[int, int], list[torch.Tensor]] = {}
    apply = DifferenceNoise.apply

    def compare(noise: DifferenceNoise, blocks: Any, rank: int, number: int) -> None:
        before = [block.clone() for block in blocks]
        apply(noise, blocks, rank, number)
        after = add_noise_plainly(before, ("eu", "us")[rank // 2], rank, number)
        torch.testing.assert_close(list(blocks), after, rtol=1e-6, atol=1e-7)
        plain.setdefault((rank, number), [block.clone() for block in blocks])

    monkeypatch.setattr(DifferenceNoise, "apply", compare)
    model, _, _ = train(privacy, delay=delay)
    assert plain.keys() == {(rank, number) for rank in range(RANKS) for number in range(1, ROUNDS + 1)}
    # The outer optimizer averages models, so the model is the first one minus all means.
    expected = [parameter.detach().clone() for parameter in build_model().parameters()]
    for number in range(1, ROUNDS + 1):
        for place, value in enumerate(expected):
            mean = sum(plain[rank, number][place].view(value.shape) for rank in range(RANKS)) / RANKS
            value.sub_(mean)
    torch.testing.assert_close([p.detach() for p in model.parameters()], expected, rtol=1e-4, atol=1e-4)


def test_the_bits_follow_from_the_secret_and_losses_stay_at_their_site(privacy, tmp_path):
    (first, losses, run), (second, _, _) = train(privacy), train(privacy)
    assert all(math.isnan(loss) for loss in losses)
    assert run._step._round.outcome.loss == 0.0
    torch.testing.assert_close(dict(first.state_dict()), dict(second.state_dict()), rtol=0, atol=0)
    (tmp_path / "eu.secret").write_bytes(b"x" * 32)
    other, _, _ = train(privacy)
    assert not torch.equal(first[0].weight, other[0].weight)
    # Noise is on every parameter, also on one that nothing has used.
    assert not torch.equal(first[3].weight, build_model()[3].weight)


def test_a_difference_is_clipped_and_its_noise_is_normal_and_follows_from_it():
    noise = DifferenceNoise(2.0, 1.0, {0: b"key", 1: b"key"})
    large = torch.full((40_000,), 5.0)
    noisy, again, other, elsewhere = (large.clone() for _ in range(4))
    noise.apply([noisy[:100], noisy[100:]], 0, 1)
    noise.apply([again[:100], again[100:]], 0, 1)
    noise.apply([other[:100], other[100:]], 0, 2)
    noise.apply([elsewhere[:100], elsewhere[100:]], 1, 1)
    assert torch.equal(noisy, again)
    for unlike in (other, elsewhere):
        assert torch.corrcoef(torch.stack([noisy, unlike]))[0, 1].abs() < 0.03
    # 2 over the root of 40,000 is left of each element, beside noise with a deviation of 2.
    assert noisy.mean() == pytest.approx(2 / 200, abs=0.03)
    assert noisy.std() == pytest.approx(2.0, rel=0.02)
    normals = draw_normals(b"seed", 99_999)
    assert normals.numel() == 99_999
    assert float(normals.mean()) == pytest.approx(0, abs=0.015)
    assert float(normals.square().mean()) == pytest.approx(1, rel=0.02)
    assert float(normals.pow(4).mean()) == pytest.approx(3, rel=0.05)
    assert float((normals.abs() > 1.96).double().mean()) == pytest.approx(0.05, abs=0.004)
    with pytest.raises(RunFailed, match="has the norm nan"):
        noise.apply([torch.tensor([math.nan])], 0, 1)


@pytest.mark.parametrize(
    "other", [DifferenceNoise(2.0, 4.0, {0: b"key"}), DifferenceNoise(4.0, 1.0, {0: b"key"})]
)
def test_two_runs_with_other_noise_show_no_difference_together(other):
    # The first round of two runs has the same differences; these are below both largest norms.
    one, difference = DifferenceNoise(2.0, 1.0, {0: b"key"}), torch.full((10_000,), 1e-3)
    shown = [difference.clone(), difference.clone()]
    one.apply([shown[0]], 0, 1)
    other.apply([shown[1]], 0, 1)
    parts = torch.stack([(each - difference).double() for each in shown])
    assert torch.corrcoef(parts)[0, 1].abs() < 0.05


def test_a_parameter_without_elements_gets_no_noise():
    blocks = [torch.zeros(0), torch.zeros(3)]
    DifferenceNoise(1.0, 1.0, {0: b"key"}).apply(blocks, 0, 1)
    assert blocks[0].numel() == 0
    assert blocks[1].abs().min() > 0


@pytest.mark.parametrize("value", [1e30, 3e34, 1e37, 3e38])
def test_a_huge_difference_is_clipped_to_the_largest_norm(value):
    clip, difference = 1e-3, torch.full((1000,), value)
    DifferenceNoise(clip, 1e-12, {0: b"key"}).apply([difference], 0, 1)
    assert float(difference.double().norm()) == pytest.approx(clip, rel=1e-5)


@pytest.mark.parametrize("rounds", [1, 3, 9, 40])
@pytest.mark.parametrize("lengths", [{"eu": 37, "us": 30}, {"eu": 7, "us": 200}])
def test_no_sample_is_in_more_differences_than_are_counted(rounds, lengths):
    plan = bind_ranks(make_round_plan(0, STEPS, RANKS, BATCH, rounds, seed=SEED), lengths, "wait")
    data = {site: partial(make_samples, length) for site, length in lengths.items()}
    source = BoundBatchSource(data, plan, tuple(lengths), None)
    for site, length in lengths.items():
        seen: Counter[int] = Counter()
        for rank in source._ranks[site]:
            for number in range(rounds):
                own = plan.samples_per_rank
                positions = range(number * own, (number + 1) * own)
                seen.update({source._find_index(site, rank, position) for position in positions})
        counted = count_uses(plan, site, length)
        assert max(seen.values()) <= counted
        if plan.samples_per_rank <= length // 2:
            assert counted <= max(seen.values()) + 1


def test_the_guarantee_says_what_a_site_does_to_it_that_is_lost_and_left_out(privacy):
    assert "in at most 2 of them: epsilon" in describe_privacy(privacy, 2, "wait")
    assert "in at most 2 of them unless its site is lost within a round" in describe_privacy(
        privacy, 2, "skip"
    )


def test_epsilon_is_that_of_gaussian_noise_and_grows_with_uses():
    pytest.importorskip("opacus", reason="its accountant is an extra of its own")
    privacy = Privacy(clip=1.0, noise=8.0, secret="")
    few, many = privacy.compute_epsilon(1), privacy.compute_epsilon(4)
    # Four uses are one with half of the noise.
    assert many == pytest.approx(Privacy(clip=3.0, noise=4.0, secret="").compute_epsilon(1))
    assert 0 < few < many
    for uses, epsilon in ((1, few), (4, many)):
        assert find_delta(epsilon, math.sqrt(uses) * 2 / 8.0) <= privacy.delta
        assert find_delta(0.7 * epsilon, math.sqrt(uses) * 2 / 8.0) > privacy.delta


def find_delta(epsilon: float, mu: float) -> float:
    """Return the exact delta of Gaussian noise (Balle and Wang, 2018, theorem 8)."""

    def phi(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    return phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clip": 0.0}, "invalid clip: 0.0"),
        ({"noise": math.nan}, "invalid noise: nan"),
        ({"delta": 1.0}, "invalid delta: 1.0"),
        ({"secret": "/no/{site}"}, "the secret of site eu cannot be used: /no/eu"),
    ],
)
def test_privacy_that_cannot_be_kept_is_refused(privacy, changes, words):
    with pytest.raises(BadInput) as caught:
        train(msgspec.structs.replace(privacy, **changes))
    assert words in str(caught.value)


def test_a_secret_is_named_by_a_path_too(privacy, tmp_path):
    named = msgspec.structs.replace(privacy, secret=tmp_path / "{site}.secret")
    assert named.read_key("eu") == privacy.read_key("eu") != privacy.read_key("us")


def test_what_would_leave_a_site_without_noise_is_refused(privacy, tmp_path):
    (tmp_path / "us.secret").write_bytes(b"short")
    with pytest.raises(BadInput, match=r"us\.secret: it has 5 bytes"):
        train(privacy)
    (tmp_path / "us.secret").write_bytes(bytes(32))
    run, _ = prepare()
    with pytest.raises(BadInput, match="privacy= with one dataset"):
        next(run.rounds(make_samples(40), **OPTIONS, privacy=privacy))
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES))
    run, _ = prepare(model)
    with pytest.raises(BadInput, match=r"a round may change 1\.running_mean"):
        next(run.rounds(open_all(), **OPTIONS, privacy=privacy))
    with pytest.raises(BadInput, match="the script recorded rows of a microbatch"):
        train(privacy, log=True)
