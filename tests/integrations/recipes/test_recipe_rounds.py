"""Recipes in rounds: checks, the number of rounds, the plan, and runs that joins and deaths do not change."""

import math
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from elastane.cli.main import app
from elastane.common.errors import BadField, BadInput
from elastane.integrations.recipes.memory_plan import plan_recipe
from elastane.integrations.recipes.recipe import (
    BatchSpec,
    Recipe,
    RoundsSpec,
    TrainingSpec,
    count_made_steps,
    count_rounds,
)
from elastane.integrations.recipes.recipe_checks import check_recipe
from elastane.integrations.recipes.recipe_plan import (
    PlanRequest,
    build_plan_rows,
    describe_plan,
    list_headings,
    parse_devices,
    parse_nodes,
)
from elastane.integrations.recipes.resolution import load_recipe
from elastane.integrations.recipes.round_plan import count_round_traffic
from elastane.integrations.recipes.traffic import count_node_traffic
from elastane.run.protocol.layout import SMALLEST_BLOCK
from elastane.run.worker.data.round_plans import make_round_plan

from .rehearsed_runs import (
    assert_equal_runs,
    join_kill_and_drain,
    make_small_recipe,
    play_recipe,
    release_all_steps,
)

IN_ROUNDS = (
    "training.steps=32",
    "training.rounds.inner_steps=2",
    "training.rounds.ranks=4",
    "training.rounds.group=2",
)
BLOCKS = 16
SECTIONS = ((BLOCKS * SMALLEST_BLOCK, 4),)


def load(*changes: str) -> Recipe:
    return load_recipe("llama-tiny", changes, Path.cwd())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["training.rounds.ranks=3"], "3 virtual ranks cannot share the 8 microbatches of a step equally"),
        (["training.rounds.group=3"], "3 is not the size of a group of 4 virtual ranks"),
        (["training.rounds.group=8"], "8 is not the size of a group"),
        (["training.rounds.wire=fp8"], "training.rounds.wire"),
        (["training.rounds.outer_momentum=1"], "training.rounds.outer_momentum"),
        (["training.rounds.delay=2"], "training.rounds.delay"),
        (["training.rounds.delay=1", "training.rounds.inner_state=averaged"], "inner_state: averaged"),
        (["training.rounds={}", "workers.processes=2"], "cannot be combined with workers.processes: 2"),
        (["training.rounds={}", "model.dtype=bfloat16"], "cannot be combined with model.dtype: bfloat16"),
        (["training.rounds={}", "workers.max=5"], "5 is more than the 4 virtual ranks of a round"),
        (["training.rounds.absent=skip"], "skip cannot be combined with data that every site reads"),
        (["data.sites.eu=eu.jsonl"], "data.sites: needs training.rounds"),
    ],
)
def test_what_does_not_go_together_is_refused_in_words(changes, words):
    with pytest.raises(BadInput) as caught:
        check_recipe(load(*changes))
    assert words in str(caught.value)


SITES = ("training.rounds={}", "data.sites={eu: eu/*.jsonl, us: us}", "data.held_out=0", "data.tokenizer=.")


@pytest.mark.parametrize("changes", [(), ("training.rounds.delay=1",), ("training.rounds.absent=skip",)])
def test_no_file_of_another_site_needs_to_be_here(tmp_path, changes):
    (tmp_path / "tokenizer.json").write_text("{}")
    recipe = load_recipe("llama-tiny", (*SITES, *changes), tmp_path)
    check_recipe(recipe)
    assert recipe.data.sites == {"eu": f"{tmp_path}/eu/*.jsonl", "us": f"{tmp_path}/us"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["data.path=."], "data.path: cannot be combined with data.sites"),
        (["data.tokenizer="], "data.tokenizer: is empty, and the data is bound to sites"),
        (["data.held_out=0.1"], "0.1 is a fraction, and the data is bound to sites"),
        (["training.steps=0"], "training.steps: is 0"),
        (["data.sites.jp=jp.jsonl"], "4 virtual ranks do not divide into 3 sites"),
        (["training.rounds.delay=1", "training.rounds.absent=skip"], "1 cannot be combined with"),
        (["training.rounds.absent=skip", "workers.copies=2"], "workers.copies: 2 cannot be combined"),
        (["data.sites.EU 1=eu.jsonl"], "'EU 1' cannot be the name of a site"),
    ],
)
def test_data_of_sites_needs_what_all_sites_have(tmp_path, changes, words):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BadField) as caught:
        check_recipe(load_recipe("llama-tiny", (*SITES, *changes), tmp_path))
    assert words in str(caught.value)


@pytest.mark.parametrize("samples", [1, 63, 64, 100, 640, 1000])
@pytest.mark.parametrize("inner_steps", [1, 3, 20])
def test_rounds_make_the_steps_of_the_recipe_and_end_with_a_whole_round(samples, inner_steps):
    batch = BatchSpec(size=16, microbatch=4)
    for steps in (1, 7, 40, 100):
        training = TrainingSpec(steps=steps, rounds=RoundsSpec(inner_steps=inner_steps))
        recipe = Recipe(batch=batch, training=training)
        rounds = count_rounds(recipe, samples)
        plan = make_round_plan(samples, inner_steps, 4, 16, rounds, seed=0)
        made = [math.ceil(plan.find_samples(n).count / 16) for n in range(1, rounds + 1)]
        assert [count_made_steps(recipe, samples, n) for n in range(rounds + 1)] == [
            sum(made[:n]) for n in range(rounds + 1)
        ]
        assert sum(made[:-1]) < steps <= sum(made)
    # Data of sites has no common epochs.
    assert count_rounds(recipe, 0) == math.ceil(100 / inner_steps)
    training = TrainingSpec(steps=0, epochs=3, rounds=RoundsSpec(inner_steps=inner_steps))
    epochs = Recipe(batch=batch, training=training)
    whole = make_round_plan(samples, inner_steps, 4, 16, "3 epochs", seed=0)
    assert count_rounds(epochs, samples) == whole.steps


@pytest.mark.parametrize(
    ("wire", "group", "nodes", "each_way"),
    [
        ("int8", 2, [1, 1], 65 / 64),  # each site forms one group
        ("int8", 1, [2], 0),
        ("int8", 1, [1, 1], (4 + 65 / 64) / 2),  # a site forms a node of two groups, which crosses in full
        ("int4", 2, [1, 1], (33 / 64 + 65 / 64) / 2),
        ("bf16", 2, [2, 2], 2),
        ("full", 1, [1, 1], 4),
        ("int8", 1, [1, 1, 1, 1], 2 * 3 / 4 * 65 / 64),
    ],
)
def test_the_planned_bytes_of_a_site_are_those_of_the_formats(wire, group, nodes, each_way):
    rounds = RoundsSpec(wire=wire, group=group, ranks=4)
    traffic = count_round_traffic(rounds, SECTIONS, nodes, None)
    assert traffic.largest_bytes == pytest.approx(each_way * BLOCKS * SMALLEST_BLOCK)
    if wire == "full":
        assert traffic == count_node_traffic(SECTIONS, 4, nodes, None)


def test_averaged_moments_cross_in_sixteen_bits_and_new_values_in_full():
    rounds = RoundsSpec(ranks=2, inner_state="averaged")
    elements = BLOCKS * SMALLEST_BLOCK
    assert count_round_traffic(rounds, SECTIONS, [1, 1], None).largest_bytes == (65 / 64 + 4) * elements
    fresh = RoundsSpec(ranks=2)
    assert count_round_traffic(fresh, SECTIONS, [1, 1], 1).largest_bytes == (65 / 64 + 4) / 2 * elements


def plan(*changes: str):
    devices = parse_devices("2")
    return plan_recipe(
        PlanRequest(
            recipe=load("training.rounds.inner_steps=20", "training.rounds.ranks=2", *changes),
            devices=devices,
            flops_per_s=1e10,
            nodes=parse_nodes(2, "100mbit", devices),
        )
    )


def test_a_plan_says_the_bytes_and_the_time_of_a_round_on_the_link():
    planned = plan()
    size = planned.sizes[-1]
    assert (size.workers, size.nodes) == (2, 2)
    assert size.node_traffic_bytes == pytest.approx(1.016 * planned.parameters, rel=0.01)
    link_s = size.node_traffic_bytes / 12.5e6
    assert size.step_s == pytest.approx(planned.sizes[0].step_s / 2 + link_s)
    assert planned.tokens_per_step == 20 * 16 * 128
    assert size.microbatches == 20 * 4
    assert list_headings(planned)[-4:] == ("tokens/s", "nodes", "leaves a node", "on its link")
    assert build_plan_rows(planned)[-1][-1] == f"{link_s:.3g} s"
    assert any("20 inner steps, 40,960 tokens" in sentence for sentence in describe_plan(planned))
    delayed = plan("training.rounds.delay=1").sizes[-1]
    assert delayed.step_s == pytest.approx(max(link_s, size.step_s - link_s))
    assert delayed.memory_bytes > size.memory_bytes
    assert msgspec.structs.asdict(planned)["inner_steps"] == 20


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "own.yaml"], "--site is missing"),
        (["run", "own.yaml", "--site", "jp"], "--site jp has no data in the recipe"),
        (["run", "llama-tiny", "--site", "eu"], "--site eu has no data in the recipe"),
        (["submit", "own.yaml"], "a recipe with data.sites cannot be a job"),
    ],
)
def test_a_site_is_named_where_its_data_is(tmp_path, monkeypatch, arguments, words):
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "own.yaml").write_text(
        "extends: llama-tiny\ntraining: {rounds: {ranks: 2}}\n"
        "data: {sites: {eu: eu.txt, us: us.txt}, held_out: 0, tokenizer: .}\n"
    )
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["recipe", *arguments])
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


@pytest.mark.processes
@pytest.mark.parametrize(
    "changes", [(), pytest.param(("training.rounds.delay=1",), marks=pytest.mark.long)], ids=["", "delayed"]
)
def test_a_disturbed_recipe_in_rounds_has_the_same_bits(stage, tmp_path, changes):
    recipe = make_small_recipe("llama-tiny", *IN_ROUNDS, *changes)
    reference = play_recipe(stage, recipe, tmp_path / "alone", release_all_steps)
    assert [message.partition(":")[0] for message in reference.messages] == [
        f"round {number}" for number in (4, 8, 12, 16)
    ]
    assert reference.run.ledger[-1].loss < reference.run.ledger[0].loss
    assert reference.run.record.pinned.optimizer.endswith("int8 for each 2")
    disturbed = play_recipe(stage, recipe, tmp_path / "disturbed", join_kill_and_drain)
    assert disturbed.find_subjects("worker.died") == ["worker 0"], disturbed.describe()
    assert_equal_runs(disturbed, reference)


@pytest.mark.processes
@pytest.mark.long
def test_a_recipe_reads_the_data_of_each_site_at_that_site(stage, tmp_path, tokenizer):
    folder = tmp_path / "tokenizer"
    tokenizer.save_pretrained(folder)
    for site in ("eu", "us"):
        (tmp_path / f"{site}.txt").write_text(f"{site} has words of its own. " * 400)
    recipe = make_small_recipe(
        "llama-tiny",
        *IN_ROUNDS,
        f"data.sites={{eu: {tmp_path}/eu.txt, us: {tmp_path}/us.txt}}",
        f"data.tokenizer={folder}",
        f"data.held_out={tmp_path}/eu.txt",
    )
    one = play_recipe(stage, recipe, tmp_path / "one", release_all_steps, sites=("eu", "us"))
    two = play_recipe(stage, recipe, tmp_path / "two", join_kill_and_drain, sites=("eu", "us"))
    assert_equal_runs(two, one)
    assert one.run.record.pinned.rank_sites == ("eu", "eu", "us", "us")
