"""The simulator of the published workloads, on an application whose speed is known."""

import csv
import math
from collections import Counter
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pollux import elastane_policy
from pollux.applications import MOST_NODES, NODE_DEVICES, Application
from pollux.baselines import Tiresias, place_on_freest
from pollux.elastane_policy import Elastane, cut_batches
from pollux.placement import place_on_whole_nodes
from pollux.simulation import Submission, simulate

from elastane.cluster.nouns.job_records import UNMEASURED_RESIZE_S
from elastane.cluster.scheduler.plan import plan

SAMPLES_PER_S = 10.0
"""Of one device; devices share a batch without loss."""
STEPS_OF_AN_EPOCH = 60


def write_rows(path, columns, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns.split(), *rows])


@pytest.fixture
def application(tmp_path):
    folder = tmp_path / "bert"
    folder.mkdir()
    rows = [("1" * n, local, local / SAMPLES_PER_S, 0.0) for n in (1, 2, 4, 8) for local in (1, 64)]
    rows += [(n, local, local / SAMPLES_PER_S, 0.0) for n in (2, 4) for local in (1, 64)]
    write_rows(folder / "placements.csv", "placement local_bsz step_time sync_time", rows)
    rows = [
        (nodes, n, local, local / SAMPLES_PER_S, 0.0)
        for nodes in (1, 16)
        for n in (1, 64)
        for local in (1, 64)
    ]
    write_rows(folder / "scalability.csv", "num_nodes num_replicas local_bsz step_time sync_time", rows)
    for batch in (20, 80):
        # Without noise a larger batch teaches no more than a smaller one.
        rows = [(STEPS_OF_AN_EPOCH * n, STEPS_OF_AN_EPOCH * n, 0.5, 1.0, 0.0) for n in (1, 2)]
        write_rows(folder / f"validation-{batch}.csv", "progress iteration metric grad_sqr grad_var", rows)
    return Application(folder)


def submit(application, *, devices=1, at=0, name="job", samples=20):
    return Submission(name, application, at, devices, samples)


def test_a_job_takes_the_time_of_its_steps_after_the_time_of_its_start(application):
    outcome = simulate([submit(application, devices=2)], Tiresias(), resize_s=30.0)
    steps, step_s = 2 * STEPS_OF_AN_EPOCH, 20 / 2 / SAMPLES_PER_S
    # It is placed at the end of the first tick.
    assert outcome.completions_s == [60 + 30 + steps * step_s]


def test_a_batch_is_divided_into_equal_shares_that_are_rounded_up(application):
    assert application.divide(20, 3) == (7, 0, 21)


@pytest.mark.parametrize(
    ("devices", "batch"),
    [(1, (40, 1, 80)), (3, (30, 0, 80)), (4, (20, 0, 80)), (5, (20, 0, 80)), (8, (10, 0, 80))],
)
def test_a_step_lasts_as_long_as_the_largest_share_of_the_virtual_ranks(application, devices, batch):
    assert application.divide(80, devices, virtual_ranks=8) == batch


def test_the_remaining_steps_are_those_of_the_remaining_epochs(application):
    assert application.count_steps_left(20, 1, 90.0) == 30.0
    assert application.count_steps_left(20, 2, 120.0) == 0.0


def test_tiresias_runs_the_first_jobs_that_fit(application):
    jobs = [submit(application, devices=n, name=f"{n}", samples=80) for n in (64, 32, 16)]
    first, second, third = simulate(jobs, Tiresias(), resize_s=0.0).jobs
    assert first.ended_s < second.ended_s < third.ended_s


@pytest.mark.parametrize("remaining", [False, True])
def test_elastane_gives_a_job_alone_more_than_one_device(application, remaining):
    policy = Elastane(1.0, remaining=remaining)
    [alone] = simulate([submit(application)], policy, resize_s=1.0).completions_s
    assert alone < 60 + 2 * STEPS_OF_AN_EPOCH * 20 / SAMPLES_PER_S / 3


def test_the_plan_knows_of_a_job_what_production_would_know(application, monkeypatch):
    seen = []

    def record_job(snapshot):
        seen.extend(snapshot.jobs)
        return plan(snapshot)

    monkeypatch.setattr(elastane_policy, "plan", record_job)
    simulate([cut_batches(submit(application, samples=80))], Elastane(7.0, remaining=True), resize_s=7.0)
    assert {state.virtual_ranks for state in seen} == {80}
    assert {(state.trained > 0, state.remaining is not None) for state in seen} == {
        (False, False),
        (True, True),
    }
    # The cost of a resize is assumed until the first one was measured.
    assert [cost_s for cost_s, _ in groupby(state.resize_s for state in seen)] == [UNMEASURED_RESIZE_S, 7.0]


def test_packing_takes_whole_nodes_and_moves_no_other_job():
    placed = place_on_whole_nodes({"stays": (0,), "grows": (1, 1)}, {"stays": 1, "grows": 8})
    assert placed["stays"] == (0,)
    assert len(set(placed["grows"])) == 2


def test_a_small_job_moves_aside_for_one_that_fills_a_node():
    before = {f"small-{node}": (node,) for node in range(MOST_NODES)} | {"new": ()}
    placed = place_on_whole_nodes(before, {name: len(nodes) or 8 for name, nodes in before.items()})
    assert sorted(Counter(placed["new"]).values()) == [4, 4]
    moved = {name for name, nodes in before.items() if nodes and placed[name] != nodes}
    assert len(moved) == 2
    assert not set(placed["new"]) & {placed[name][0] for name in moved}


def test_a_small_job_moves_aside_so_that_another_is_on_one_node():
    before = {f"large-{node}": (node,) * 4 for node in range(2, MOST_NODES)}
    before |= {"one": (0,), "two": (1,), "new": ()}
    placed = place_on_whole_nodes(before, {name: len(nodes) or 4 for name, nodes in before.items()})
    assert len(set(placed["new"])) == 1
    assert placed["one"] == placed["two"]
    assert all(placed[name] == nodes for name, nodes in before.items() if name.startswith("large"))


@given(
    st.lists(
        st.tuples(st.sampled_from((0, 1, 2, 3, 4, 8, 12)), st.sampled_from((0, 1, 2, 3, 4, 8))), max_size=20
    )
)
def test_each_job_has_its_devices_and_no_node_has_more_than_it_holds(changes):
    names = [f"job-{i}" for i in range(len(changes))]
    before: dict[str, tuple[int, ...]] = {}
    for turn in (0, 1):
        left = MOST_NODES * NODE_DEVICES
        sizes = {}
        for name, change in zip(names, changes, strict=True):
            sizes[name] = change[turn] if change[turn] <= left else 0
            left -= sizes[name]
        placed = place_on_whole_nodes({name: before.get(name, ()) for name in names}, sizes)
        assert {name: len(nodes) for name, nodes in placed.items()} == {
            n: size for n, size in sizes.items() if size
        }
        used = Counter(node for nodes in placed.values() for node in nodes)
        assert max(used.values(), default=0) <= NODE_DEVICES
        before = placed


def test_the_freest_nodes_come_first():
    placed = place_on_freest({"stays": (0, 0)}, {"new": 6})
    assert placed["new"] == (1, 1, 1, 1, 2, 2)


def test_an_unmeasured_size_is_refused(application):
    with pytest.raises(ValueError, match="never measured"):
        application.find_step_s((1,), 65)
    assert math.isclose(application.find_step_s((4,), 32)[0], 3.2)
