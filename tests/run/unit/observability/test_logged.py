"""Values that a script logs are in the report, the card and the metrics, and in comparisons of runs."""

import msgspec
import pytest

from elastane.common.confined_files import ConfinedDirectory
from elastane.run.attempts.verification import verify_run
from elastane.run.nouns.checkpoints import WrittenFile
from elastane.run.observability.card import FinishedModel, write_card_text
from elastane.run.observability.compare import compare_runs
from elastane.run.observability.metrics import collect_latest_values, compute_metrics
from elastane.run.observability.model_files import measure_file
from elastane.run.observability.report import render_report


def log_values(**values):
    """Make each step log these values, multiplied by its number."""
    return lambda line: msgspec.structs.replace(line, logged={n: v * line.step for n, v in values.items()})


def write_artifact(folder, text="sample"):
    """Write an artifact, and make step 4 record it."""
    path = folder / "step-4" / "a.txt"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    written = measure_file(ConfinedDirectory(path.parent), path)
    return (
        path,
        lambda line: msgspec.structs.replace(line, artifacts={"a.txt": written}) if line.step == 4 else line,
    )


def test_the_report_has_a_curve_of_each_name(make_run):
    page = render_report(make_run(change=log_values(accuracy=0.125, weights=2.0)))
    assert 'aria-label="accuracy"' in page
    assert 'aria-label="weights"' in page


def test_the_latest_values_are_in_metrics_and_card(make_run):
    run = make_run(change=log_values(accuracy=0.125))
    metrics = compute_metrics(run)
    assert metrics.logged == {"accuracy": 0.75}
    assert "| last logged values | accuracy 0.75 |" in write_card_text(
        run, metrics, FinishedModel(files=(("model", 1),))
    )


def test_a_name_that_is_logged_rarely_keeps_its_last_value(make_run):
    def change(line):
        return msgspec.structs.replace(line, logged={"val_loss": 2.0} if line.step == 3 else {"lr": 0.1})

    assert collect_latest_values(make_run(change=change).ledger) == {"lr": 0.1, "val_loss": 2.0}


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a|b", "\x1b[2J"])
def test_hostile_names_of_a_ledger_are_escaped(make_run, name):
    run = make_run(change=log_values(**{name: 1.0}))
    assert "<script>alert" not in render_report(run)
    write_card_text(run, compute_metrics(run), FinishedModel(files=(("model", 1),)))


def test_runs_of_equal_values_are_equal(make_run):
    first, second = (make_run(name=name, change=log_values(a=0.5)) for name in "ab")
    assert compare_runs(first, second).ledger == ()


def test_the_first_value_that_differs_is_named(make_run):
    first, second = (
        make_run(name="a", change=log_values(a=0.5)),
        make_run(name="b", change=log_values(a=0.25)),
    )
    (difference,) = compare_runs(first, second).ledger
    assert (difference.what, difference.step) == ("logged", 1)
    assert "a 0.5" in difference.first


def test_values_that_only_one_run_logs_are_no_difference(make_run):
    first, second = make_run(name="a", change=log_values(a=0.5)), make_run(name="b")
    assert compare_runs(first, second).ledger == ()


def test_a_step_that_lacks_a_value_is_a_difference(make_run):
    def change(line):
        return msgspec.structs.replace(line, logged={} if line.step == 5 else {"a": 0.5 * line.step})

    first, second = make_run(name="a", change=log_values(a=0.5)), make_run(name="b", change=change)
    assert [(d.what, d.step) for d in compare_runs(first, second).ledger] == [("logged", 5)]


def test_artifacts_are_checked_and_compared(make_run):
    empty = make_run()
    path, change = write_artifact(empty.run_dir.artifacts)
    run = make_run(change=change)
    assert not [p for p in verify_run(run).problems if p.kind == "artifact"]
    path.write_text("another")
    assert [(p.kind, p.step) for p in verify_run(run).problems if p.kind == "artifact"] == [("artifact", 4)]
    path.unlink()
    assert not [p for p in verify_run(run).problems if p.kind == "artifact"]
    assert any("artifacts" in remark for remark in verify_run(run).remarks)


def test_artifacts_that_differ_are_named(make_run):
    def record_artifact(checksum):
        written = {"a.txt": WrittenFile(1, checksum)}
        return lambda line: msgspec.structs.replace(line, artifacts=written) if line.step == 2 else line

    first, second = (make_run(name=name, change=record_artifact(name * 32)) for name in "ab")
    assert [(d.what, d.step) for d in compare_runs(first, second).ledger] == [("artifacts", 2)]
