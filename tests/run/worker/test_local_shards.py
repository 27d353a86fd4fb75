"""Rows of divided tensors: which process has which, and in which order their gradients are added."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from elastane.common.errors import BadInput
from elastane.run.nouns.control import CheckpointPart
from elastane.run.worker.gangs.gang_parts import merge_parts
from elastane.run.worker.state import tree_reduce_scatter
from elastane.run.worker.state.local_shards import LocalShards
from elastane.run.worker.state.tree_reduce_scatter import TreeReduceScatter


def exchange(sent):
    """Return what each process of a group receives: an all-to-all of equal parts."""
    parts = [tensor.chunk(len(sent)) for tensor in sent]
    return [torch.cat([parts[other][own] for other in range(len(sent))]) for own in range(len(sent))]


@pytest.mark.parametrize("processes", [2, 4, 8])
def test_gradients_of_processes_are_added_in_the_order_of_the_tree(monkeypatch, processes):
    generator = torch.Generator().manual_seed(0)
    sent = [torch.randn(processes * 5, generator=generator) for _ in range(processes)]
    received = exchange(sent)
    for own in range(processes):
        monkeypatch.setattr(
            tree_reduce_scatter.dist,
            "all_to_all_single",
            lambda into, _sent, group, own=own: into.copy_(received[own]),
        )
        summed = torch.empty(5)
        TreeReduceScatter()(summed, sent[own], SimpleNamespace(size=lambda: processes), None)
        nodes = [tensor.chunk(processes)[own] for tensor in sent]
        while len(nodes) > 1:
            nodes = [nodes[n] + nodes[n + 1] for n in range(0, len(nodes), 2)]
        assert torch.equal(summed, nodes[0])


def test_a_model_that_is_not_divided_is_refused():
    model = nn.Linear(2, 2)
    with pytest.raises(BadInput, match="has not divided the model among the 2 processes"):
        LocalShards(model, torch.optim.SGD(model.parameters()), 2)


def report(state, *, name="step-00000004", written=0, error=""):
    return CheckpointPart(
        name=name, step=4, writers=(0,), state=state, error=error, bytes=written, write_s=written / 10
    )


@pytest.mark.parametrize(
    ("own", "other", "merged"),
    [
        ("written", "written", "written"),
        ("written", "writing", "writing"),
        ("copied", "writing", "copied"),
        ("written", "failing", "failing"),
        ("failing", "abandoned", "abandoned"),
    ],
)
def test_a_gang_is_as_far_as_its_slowest_process(own, other, merged):
    (part,) = merge_parts([(report(own, written=3),), (report(other, written=5, error="full"),)])
    assert part.state == merged
    if merged == "written":
        assert (part.bytes, part.write_s) == (8, 0.5)
    if other in ("failing", "abandoned"):
        assert part.error == "full"


def test_a_process_that_has_not_reported_holds_its_gang_back():
    newer = report("written", name="step-00000008")
    parts = merge_parts([(report("written"), newer), (report("written"),)])
    assert [part.state for part in parts] == ["written", "copied"]
