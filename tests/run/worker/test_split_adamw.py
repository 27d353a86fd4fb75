"""`SplitAdamW` trains weights in bfloat16 as AdamW trains those in float32."""

import copy

import pytest
import torch
from torch import nn

from elastane.common.errors import BadInput
from elastane.run.worker import split_adamw
from elastane.run.worker.split_adamw import SplitAdamW, join_bits, split_bits

BETAS = (0.9, 0.95)


def split(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    upper = torch.empty_like(weights, dtype=torch.bfloat16)
    rest = torch.empty_like(weights, dtype=torch.int16)
    split_bits(weights, upper, rest)
    return upper, rest


def join_weights(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> torch.Tensor:
    return join_bits(parameter.detach(), optimizer.state[parameter]["low_bits"])


def test_every_float32_is_the_sum_of_its_parts():
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(1 << 31), 1 << 31, (1 << 20,), generator=generator).to(torch.int32)
    bits = bits[(bits & 0xFFFF) != 0x8000]
    weights = bits.view(torch.float32)
    weights = weights[~weights.isnan()]
    upper, rest = split(weights)
    assert torch.equal(upper, weights.to(torch.bfloat16))
    assert torch.equal(join_bits(upper, rest), weights)


def test_a_weight_between_two_of_bfloat16_loses_at_most_its_last_bit():
    bits = torch.arange(0x3F80, 0x4080, dtype=torch.int32) << 16 | 0x8000
    weights = bits.view(torch.float32)
    upper, rest = split(weights)
    assert torch.equal(upper, weights.to(torch.bfloat16))
    lost = bits - join_bits(upper, rest).view(torch.int32)
    assert lost.unique().tolist() == [0, 1]


def test_a_number_that_is_not_finite_stays_so():
    values = [float("inf"), -float("inf"), float("nan"), torch.finfo(torch.float32).max]
    patterns = torch.tensor([0x7FFFFFFF, -1, 0x7F800001, -0x7FFFFF], dtype=torch.int32)  # four kinds of NaN
    weights = torch.cat([torch.tensor(values), patterns.view(torch.float32)])
    joined = join_bits(*split(weights))
    assert torch.equal(joined.isnan(), weights.isnan())
    assert torch.equal(joined[~joined.isnan()], weights[~weights.isnan()])


@pytest.mark.parametrize("shape", [(300,), (20, 15), (2, 3, 5, 10)])
def test_weights_in_bfloat16_train_as_those_in_float32(shape):
    generator = torch.Generator().manual_seed(1)
    narrow = nn.Parameter(torch.randn(shape, generator=generator).to(torch.bfloat16))
    wide = nn.Parameter(narrow.detach().float())
    ours = SplitAdamW([narrow], lr=3e-4, betas=BETAS, weight_decay=0.1)
    theirs = torch.optim.AdamW([wide], lr=3e-4, betas=BETAS, weight_decay=0.1)
    for _ in range(200):
        narrow.grad = torch.randn(shape, generator=generator).to(torch.bfloat16)
        wide.grad = narrow.grad.float()
        ours.step()
        theirs.step()
    assert torch.equal(join_weights(ours, narrow), wide.detach())
    assert torch.equal(narrow.detach(), wide.detach().to(torch.bfloat16))


def test_weights_decay_that_plain_adamw_leaves_as_they_are():
    start = torch.full((4, 4), 0.02, dtype=torch.bfloat16)
    plain, split_one = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    for kind, parameter in ((torch.optim.AdamW, plain), (SplitAdamW, split_one)):
        optimizer = kind([parameter], lr=3e-4, weight_decay=1.0)
        for _ in range(100):
            parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
    assert torch.equal(plain.detach(), start)
    expected = start.float() * (1 - 3e-4) ** 100
    assert torch.allclose(split_one.detach().float(), expected, rtol=2**-8)


def test_parameters_of_other_types_train_as_with_adamw():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4).double())
    other = copy.deepcopy(model)
    optimizers = SplitAdamW(model.parameters(), lr=0.01), torch.optim.AdamW(other.parameters(), lr=0.01)
    for parameter, twin in zip(model.parameters(), other.parameters(), strict=True):
        parameter.grad = torch.randn_like(parameter)
        twin.grad = parameter.grad.clone()
    for optimizer in optimizers:
        optimizer.step()
    assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_an_update_in_parts_has_the_same_bits(monkeypatch):
    def train() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        generator = torch.Generator().manual_seed(2)
        parameter = nn.Parameter(torch.randn(37, 29, generator=generator).to(torch.bfloat16))
        optimizer = SplitAdamW([parameter], lr=0.01)
        for _ in range(5):
            parameter.grad = torch.randn(37, 29, generator=generator).to(torch.bfloat16)
            optimizer.step()
        return parameter.detach(), optimizer.state[parameter]

    whole, state = train()
    monkeypatch.setattr(split_adamw, "PART_ELEMENTS", 64)
    parts, others = train()
    assert torch.equal(parts, whole)
    assert state.keys() == others.keys() == {"step", "exp_avg", "exp_avg_sq", "low_bits"}
    assert all(torch.equal(state[key], others[key]) for key in state)
    assert state["step"] == 5


def test_a_loaded_state_keeps_its_types():
    parameter = nn.Parameter(torch.ones(5, dtype=torch.bfloat16))
    optimizer = SplitAdamW([parameter], lr=1e-3)
    parameter.grad = torch.linspace(-1, 1, 5).to(torch.bfloat16)
    optimizer.step()
    twin = nn.Parameter(parameter.detach().clone())
    loaded = SplitAdamW([twin], lr=1e-3)
    loaded.load_state_dict(optimizer.state_dict())
    twin.grad = parameter.grad.clone()
    for one in (optimizer, loaded):
        one.step()
    ours, theirs = optimizer.state[parameter], loaded.state[twin]
    assert {key: entry.dtype for key, entry in theirs.items()} == {
        key: entry.dtype for key, entry in ours.items()
    }
    assert torch.equal(join_weights(loaded, twin), join_weights(optimizer, parameter))


def test_a_closure_computes_the_loss_again():
    parameter = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = SplitAdamW([parameter], lr=0.5)

    def closure() -> float:
        optimizer.zero_grad()
        loss = parameter.float().square().sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 3.0
    assert optimizer.step(closure) < 3.0


def test_a_parameter_in_float16_is_refused():
    parameter = nn.Parameter(torch.ones(3, dtype=torch.float16))
    parameter.grad = torch.ones_like(parameter)
    with pytest.raises(BadInput, match="float16"):
        SplitAdamW([parameter]).step()


@pytest.mark.parametrize("wrong", [{"lr": -1.0}, {"eps": -1.0}, {"betas": (1.0, 0.9)}])
def test_an_argument_out_of_its_range_is_refused(wrong):
    with pytest.raises(ValueError, match="Invalid"):
        SplitAdamW([nn.Parameter(torch.ones(1))], **wrong)
