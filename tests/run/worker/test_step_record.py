"""The values and files that a script records of a step, in one process.

tests/run/processes/test_recording.py has several processes.
"""

import math

import pytest
import torch

from elastane.common.errors import BadInput, RunFailed
from elastane.run.worker.artifacts import remove_unfinished, write_artifact
from elastane.run.worker.step_record import StepRecord, compute_means, weigh_values

from .lessons import make_samples
from .test_mistakes import Script, catch_refusal, compute_loss


@pytest.fixture
def lines():
    """Return the values and files of each step, as the reporter last received them."""
    return {}


@pytest.fixture
def script(lines, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    script = Script()
    reporter = script.run._reporter
    report_step = reporter.report_step

    def observe_step(round_, *args, logged, **options):
        lines[round_.outcome.step] = [dict(logged), {}]
        report_step(round_, *args, logged=logged, **options)

    def observe_record(values, files):
        lines[max(lines)] = [dict(values), dict(files)]

    monkeypatch.setattr(reporter, "report_step", observe_step)
    monkeypatch.setattr(reporter.steps, "update_record", observe_record)
    return script


def test_values_of_microbatches_become_their_mean_over_samples(script, lines):
    seen = {}

    def compute_microbatch(step, batch):
        step.backward(compute_loss(script.model, batch))
        value = batch[0].sum().item()
        script.run.log(sum_of_inputs=batch[0].sum(), mean=value / 2)
        if step.under_way and step._rehearsal is None:
            seen.setdefault(step._trainer.step + 1, []).append((value, len(batch[0])))

    script.compute_microbatch = compute_microbatch
    script.train(microbatch=3, global_batch=9)
    assert len(lines) == 3
    for step, batches in seen.items():
        expected = math.fsum(value * count for value, count in batches) / sum(n for _, n in batches)
        assert lines[step][0]["sum_of_inputs"] == pytest.approx(expected)


def test_values_of_a_step_are_added_to_those_of_its_microbatches(script, lines):
    def compute_microbatch(step, batch):
        step.backward(compute_loss(script.model, batch))
        script.run.log(inside=1.0)

    script.compute_microbatch = compute_microbatch
    script.act_after_step = lambda step: (
        script.run.log(number=step.number),
        script.run.log(lr=torch.tensor([0.5])),
    )
    script.train()
    assert [lines[step][0] for step in (1, 2, 3)] == [
        {"inside": 1.0, "number": float(step), "lr": 0.5} for step in (1, 2, 3)
    ]


def test_values_that_are_not_finite_are_recorded(script, lines):
    def compute_microbatch(step, batch):
        step.backward(compute_loss(script.model, batch))
        script.run.log(inside=math.nan, large=1e308)

    script.compute_microbatch = compute_microbatch
    script.act_after_step = lambda _step: script.run.log(perplexity=torch.tensor(1000.0).exp(), count=10**400)
    script.train()
    assert len(lines) == 3
    for values, _ in lines.values():
        assert math.isnan(values.pop("inside"))
        assert values == {"large": math.inf, "perplexity": math.inf, "count": math.inf}


def test_a_microbatch_that_does_not_log_a_name_does_not_count_for_it():
    sums = [weigh_values({"seldom": 4.0, "often": 1.0}, 2), weigh_values({"often": 3.0}, 6)]
    totals = {name: math.fsum(some.get(name, 0.0) for some in sums) for name in {*sums[0], *sums[1]}}
    assert compute_means(totals) == {"seldom": 4.0, "often": (2.0 + 18.0) / 8}


def test_totals_of_an_evaluation_have_no_weights_and_give_no_means():
    assert compute_means({"loss": 3.0, "right": 2.0}) == {}


HOSTILE = {
    "name with a slash": {"val/loss": 1.0},
    "empty name": {"": 1.0},
    "name with a line break": {"a\nb": 1.0},
    "long name": {"a" * 65: 1.0},
    "text": {"a": "3.4"},
    "huge text": {"a": "x" * 10_000_000},
    "nothing": {"a": None},
    "several": {"a": torch.zeros(3)},
    "no tensor at all": {"a": torch.zeros(0)},
    "complex": {"a": 1j},
    "list": {"a": [1.0]},
    "10,000 names": {f"name_{n}": 1.0 for n in range(10_000)},
}


@pytest.mark.parametrize("values", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("place", ["inside", "between"])
def test_values_that_cannot_be_recorded_are_refused(script, values, place):
    def compute_microbatch(step, batch):
        step.backward(compute_loss(script.model, batch))
        script.run.log(**values)

    if place == "inside":
        script.compute_microbatch = compute_microbatch
    else:
        script.act_after_step = lambda _step: script.run.log(**values)
    error = catch_refusal(script)
    assert "run.log" in error.what
    assert len(str(error)) < 600


def test_a_name_has_one_value_in_a_step(script):
    def compute_microbatch(step, batch):
        step.backward(compute_loss(script.model, batch))
        script.run.log(right=1.0)

    script.compute_microbatch = compute_microbatch
    script.act_after_step = lambda _step: script.run.log(right=2.0)
    assert "two names" in catch_refusal(script).do


def test_the_number_of_values_in_a_step_is_limited(script):
    script.act_after_step = lambda _step: [script.run.log(**{f"name_{n}": 1.0}) for n in range(1000)]
    assert "run.artifact" in catch_refusal(script).do


def test_a_logged_value_that_differs_between_two_passes_is_refused(script):
    counter = iter(range(1000))

    def compute_microbatch(step, batch):
        step.backward(compute_loss(script.model, batch))
        script.run.log(count=next(counter))

    script.compute_microbatch = compute_microbatch
    assert "count" in catch_refusal(script).what


def build_calls(script):
    def log():
        script.run.log(a=1.0)

    def write():
        with script.run.artifact("a.txt") as path:
            path.write_text("a")

    return {"run.log": log, "run.artifact": write}


@pytest.mark.parametrize("function", ["run.log", "run.artifact"])
def test_recording_without_a_step_just_made_is_refused(script, function):
    call = build_calls(script)[function]
    with pytest.raises(BadInput):
        call()
    script.prepare()
    with pytest.raises(BadInput, match="before the step was made"):
        call()
    for step in script.run.steps(script.data, global_batch=8, microbatch=2, until=2):
        with pytest.raises(BadInput, match="before the step was made"):
            call()
        for batch in step:
            script.compute_microbatch(step, batch)
        call()
        score = script.run.evaluate(make_samples(), microbatch=4)
        for _ in score:
            with pytest.raises(BadInput, match="inside an evaluation"):
                call()
    with pytest.raises(BadInput, match=r"after the last step[\s\S]*step\.last"):
        call()


def test_an_artifact_is_a_file_of_its_step(script, lines, tmp_path):
    def act_after_step(step):
        with script.run.artifact("sample.txt") as path:
            path.write_text(f"step {step.number}")

    script.act_after_step = act_after_step
    script.train()
    found = {str(p.relative_to(tmp_path)): p.read_text() for p in tmp_path.rglob("*") if p.is_file()}
    assert found == {f"artifacts/step-{n}/sample.txt": f"step {n}" for n in (1, 2, 3)}
    assert [lines[n][1]["sample.txt"].bytes for n in (1, 2, 3)] == [6, 6, 6]


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "/etc/x", ".hidden", "", "a b", "x\n", "a" * 101, None, 3, "\x1b[2J", "é"]
)
def test_an_artifact_cannot_leave_its_folder(script, name):
    def act_after_step(_step):
        with script.run.artifact(name) as path:
            path.write_text("x")

    script.act_after_step = act_after_step
    error = catch_refusal(script)
    assert "samples.png" in error.do
    assert str(error).isprintable() or "\x1b" not in str(error)


@pytest.mark.parametrize("content", ["nothing", "folder", "link"])
def test_an_artifact_must_be_one_file(script, content, tmp_path):
    def act_after_step(_step):
        with script.run.artifact("x.txt") as path:
            if content == "folder":
                path.mkdir()
            elif content == "link":
                path.symlink_to("/etc/passwd")

    script.act_after_step = act_after_step
    assert "write one file" in catch_refusal(script).do
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_half_written_artifact_does_not_appear(script, tmp_path):
    def act_after_step(_step):
        with script.run.artifact("x.txt") as path:
            path.write_text("half")
            raise KeyError("the script's own")

    script.act_after_step = act_after_step
    with pytest.raises(KeyError):
        script.train()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_unfinished_artifacts_of_dead_workers_are_removed(tmp_path):
    (tmp_path / ".worker-3").mkdir()
    (tmp_path / ".worker-3" / "x.txt").write_text("half")
    remove_unfinished(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_error_names_an_artifact_that_cannot_be_written(tmp_path):
    (tmp_path / "artifacts").write_text("a file")
    with (
        pytest.raises(RunFailed) as failed,
        write_artifact(tmp_path / "artifacts", 3, "x.txt", 0) as (path, _),
    ):
        path.write_text("x")
    assert "step 3" in failed.value.what


def test_the_digest_tells_values_and_files_apart():
    one, other = StepRecord(), StepRecord()
    for record in (one, other):
        record.begin({"inside": 1.0})
    assert one.digest == other.digest == ""
    one.log({"a": 1.0})
    other.log({"a": 1.0000000000000002})
    assert one.digest != other.digest
