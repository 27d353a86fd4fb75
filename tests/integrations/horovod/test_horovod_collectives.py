"""Exchanges, parameters and the optimizer of the Horovod integration, alone and with real processes."""

import json

import pytest
import torch

import elastane.integrations.horovod as hvd
from elastane.common.errors import BadInput
from tests.integrations.horovod.alone import start_world, wait_for_all

EXCHANGES = """
import json, torch
import elastane.integrations.horovod as hvd
hvd.init()
r = hvd.rank()
model = torch.nn.Linear(3, 2)
torch.nn.init.constant_(model.weight, float(r)); torch.nn.init.constant_(model.bias, float(r))
sgd = torch.optim.SGD(model.parameters(), lr=0.5 + r, momentum=0.9)
optimizer = hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=1)
hvd.broadcast_optimizer_state(optimizer, root_rank=1)
found = {
    "size": hvd.size(), "local": [hvd.local_rank(), hvd.local_size()],
    "cross": [hvd.cross_rank(), hvd.cross_size()],
    "mean": hvd.allreduce(torch.tensor([1.0, 3.0]) * (r + 1)).tolist(),
    "half": hvd.allreduce(torch.tensor([1.0, 3.0]) * (r + 1), compression=hvd.Compression.fp16).tolist(),
    "sum": hvd.allreduce(torch.tensor([1, 2]) + r, op=hvd.Sum).tolist(),
    "max": hvd.allreduce(torch.tensor([r]), op=hvd.Max).tolist(),
    "scaled": hvd.allreduce(torch.ones(1), op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0).tolist(),
    "strided": hvd.allreduce_(torch.arange(4.0).reshape(2, 2).t() * (r + 1)).tolist(),
    "gathered": hvd.allgather(torch.full((r + 1, 2), r)).tolist(),
    "objects": hvd.allgather_object({"rank": r}),
    "object": hvd.broadcast_object({"rank": r}, root_rank=1),
    "sent": hvd.synchronize(hvd.broadcast_async(torch.tensor([r]), 1)).tolist(),
    "weight": model.weight[0, 0].item(), "lr": optimizer.param_groups[0]["lr"],
}
inputs = torch.ones(1, 3) * (r + 1)
model(inputs).sum().backward()
optimizer.step()
found["stepped"] = [model.weight[0, 0].item(), model.weight.grad[0, 0].item()]
optimizer.zero_grad()
if r == 0:
    model(inputs).sum().backward()  # the other process has no gradient
optimizer.synchronize()
found["one sided"] = model.weight.grad[0, 0].item()
torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
clipped = model.weight.grad.clone()
with optimizer.skip_synchronize():
    optimizer.step()
found["kept"] = bool(torch.equal(clipped, model.weight.grad))
hvd.barrier()
print(json.dumps(found))
hvd.shutdown()
"""


@pytest.mark.processes
def test_two_processes_exchange_what_horovod_would(stage, tmp_path):
    ended = wait_for_all(start_world(stage, EXCHANGES, 2, tmp_path))
    assert [code for code, _, _ in ended] == [0, 0], ended
    first, second = (json.loads(output) for _, output, _ in ended)
    assert (first.pop("cross"), second.pop("cross")) == ([0, 2], [1, 2])
    assert first == second
    assert first == {
        "size": 2,
        "local": [0, 1],
        "mean": [1.5, 4.5],
        "half": [1.5, 4.5],
        "sum": [3, 5],
        "max": [1],
        "scaled": [12.0],
        "strided": [[0.0, 3.0], [1.5, 4.5]],
        "gathered": [[0, 0], [1, 1], [1, 1]],
        "objects": [{"rank": 0}, {"rank": 1}],
        "object": {"rank": 1},
        "sent": [1],
        "weight": 1.0,
        "lr": 1.5,
        # The mean gradient of inputs 1 and 2 is 1.5; 1 - 1.5 * 1.5.
        "stepped": [-1.25, 1.5],
        "one sided": 0.5,
        "kept": True,
    }


PARTS = """
import json, torch
import elastane.integrations.horovod as hvd
hvd.init()
r = hvd.rank()
rows = torch.arange(8.0).reshape(4, 2) + 10 * r
sent = rows.clone()
gathered = hvd.grouped_allgather([torch.full((r, 2), float(r)), torch.tensor([r, r + 10]), torch.ones(1, 0)])
print(json.dumps({
    "mean": hvd.reducescatter(sent).tolist(),
    "sum": hvd.reducescatter(rows.long(), op=hvd.Sum).tolist(),
    "half": hvd.reducescatter(rows, compression=hvd.Compression.fp16, op=hvd.Sum).tolist(),
    "strided": hvd.reducescatter(rows.t(), op=hvd.Sum).tolist(),
    "few": list(hvd.reducescatter(torch.ones(2, 3)).shape),
    "untouched": bool(torch.equal(sent, rows)),
    "gathered": [part.tolist() for part in gathered],
}))
hvd.shutdown()
"""


@pytest.mark.processes
def test_three_processes_cut_and_join_tensors_along_the_first_dimension(stage, tmp_path):
    ended = wait_for_all(start_world(stage, PARTS, 3, tmp_path))
    assert [code for code, _, _ in ended] == [0, 0, 0], ended
    found = [json.loads(output) for _, output, _ in ended]
    # Rank 0 has the rows 0 1, 2 3, 4 5, 6 7; rank 1 has 10 more in each element, rank 2 has 20 more.
    assert [parts["mean"] for parts in found] == [[[10, 11], [12, 13]], [[14, 15]], [[16, 17]]]
    sums = [[[30, 33], [36, 39]], [[42, 45]], [[48, 51]]]
    assert [parts["sum"] for parts in found] == sums
    assert [parts["half"] for parts in found] == sums
    assert [parts["strided"] for parts in found] == [[[30, 36, 42, 48]], [[33, 39, 45, 51]], []]
    assert [parts["few"] for parts in found] == [[1, 3], [1, 3], [0, 3]]
    assert all(parts["untouched"] for parts in found)
    # Rank 0 has no row, rank 1 one row of 1, rank 2 two rows of 2.
    rows = [[[1, 1], [2, 2], [2, 2]], [0, 10, 1, 11, 2, 12], [[], [], []]]
    assert [parts["gathered"] for parts in found] == [rows, rows, rows]


def test_one_process_trains_like_its_optimizer(alone):
    def train(wrap):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        optimizer = wrap(torch.optim.AdamW(model.parameters(), lr=0.1))
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        for _ in range(5):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.arange(8) % 3).backward()
            optimizer.step()
            schedule.step()
        return model.weight.detach()

    assert torch.equal(train(lambda optimizer: optimizer), train(hvd.DistributedOptimizer))


def test_the_wrapped_optimizer_keeps_its_class_and_the_state_of_the_given_one(alone):
    model = torch.nn.Linear(2, 2)
    given = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    given.step()
    made = hvd.DistributedOptimizer(given)
    assert isinstance(made, torch.optim.SGD)
    assert made.state_dict()["state"][0]["momentum_buffer"] is not None
    assert made.param_groups is given.param_groups


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: hvd.allreduce(torch.tensor([1])), "cannot average"),
        (lambda: hvd.allreduce(torch.ones(1), op=hvd.Adasum), "Adasum is not supported"),
        (lambda: hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum), "both average and op"),
        (lambda: hvd.allgather(torch.tensor(1.0)), "without dimensions"),
        (lambda: hvd.broadcast(torch.ones(1), 3), "root_rank 3"),
        (lambda: hvd.broadcast_parameters(torch.ones(1), 0), "broadcast_parameters got Tensor"),
    ],
)
def test_what_cannot_be_exchanged_is_refused_in_words(alone, wrong, says):
    with pytest.raises(BadInput, match=says):
        wrong()


def test_names_of_parameters_must_be_complete_and_distinct(alone):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(BadInput, match="weight more than once"):
        hvd.DistributedOptimizer(optimizer, [*model.named_parameters(), ("weight", model.weight)])
    with pytest.raises(BadInput, match="lacks 1 parameters"):
        hvd.DistributedOptimizer(optimizer, [("weight", model.weight)])


def test_grouping_changes_nothing_and_a_part_of_the_processes_is_refused(alone):
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    made = hvd.DistributedOptimizer(
        optimizer, num_groups=2, groups=[list(optimizer.param_groups[0]["params"])]
    )
    assert isinstance(made, torch.optim.SGD)
    with pytest.raises(BadInput, match="process_set"):
        hvd.DistributedOptimizer(optimizer, process_set=[0])


def test_a_process_without_init_has_no_rank():
    with pytest.raises(BadInput, match=r"hvd\.init\(\) was not called"):
        hvd.rank()


def test_contradicting_variables_are_refused(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BadInput, match="RANK=2, WORLD_SIZE=2"):
        hvd.init()


def test_a_part_of_horovod_that_is_missing_says_where_to_look():
    with pytest.raises(AttributeError, match=r"has no join"):
        _ = hvd.join
