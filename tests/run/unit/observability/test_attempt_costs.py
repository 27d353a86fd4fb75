"""The reports of a resumed run: lost steps, restored bytes and the time without training."""

import shlex

import msgspec
import pytest

from elastane.run.nouns.records import Digest, EventLine
from elastane.run.nouns.spec import CheckpointPolicy, RunRecord, RunSpec
from elastane.run.observability.attempts import (
    AttemptCost,
    Restored,
    compute_attempt_costs,
    find_restored,
    is_beginning,
)
from elastane.run.observability.card import FinishedModel, write_card_text
from elastane.run.observability.facts import collect_facts, find_newest_digest, find_outcome
from elastane.run.observability.metrics import compute_metrics
from elastane.run.observability.report import format_command, render_report
from elastane.run.observability.series import find_step


def make_restored(worker: int, seconds: float, *, nbytes: int = 500) -> EventLine:
    return EventLine(
        time=1003.2,
        kind="checkpoint.restored",
        who=f"worker {worker}",
        step=2,
        detail={"name": "step-00000002", "bytes": nbytes, "seconds": seconds},
    )


def make_saved(step: int, name: str, at: float) -> EventLine:
    detail = {"name": name, "step": step, "bytes": 1000, "copy_s": 0.002, "seconds": 0.25, "writers": 2}
    return EventLine(time=at, kind="checkpoint.saved", step=step + 1, detail=detail)


RESUMED = EventLine(
    time=1002.9,
    kind="run.resumed",
    why="asked to: from step-00000002, 3 steps are made again",
    step=2,
    detail={"name": "step-00000002", "step": 2, "lost_steps": 3, "times": 1, "away_s": 60.5},
)
# Its ledger says that step 2 was made at 1002.0 and step 3 at 1003.0.
EVENTS = (
    EventLine(time=1000.0, kind="run.started"),
    EventLine(time=1000.5, kind="worker.joined", who="worker 0", step=0),
    make_saved(2, "step-00000002", 1002.1),
    EventLine(time=1002.2, kind="worker.died", who="worker 0", step=5),
    EventLine(time=1002.3, kind="run.stopped"),
    RESUMED,
    EventLine(time=1002.95, kind="worker.joined", who="worker 1", step=2),
    make_restored(1, 0.5),
    make_restored(2, 0.25),
    EventLine(time=1004.5, kind="worker.joined", who="worker 3", step=4),
    make_saved(6, "step-00000006.r1", 1006.1),
    EventLine(time=1006.2, kind="run.finished"),
)


@pytest.fixture
def run(make_run):
    return make_run(events=EVENTS)


def test_the_cost_of_an_attempt_has_its_checkpoint_lost_steps_and_pause(run):
    (attempt,) = compute_attempt_costs(run.events, run.ledger)
    assert attempt == AttemptCost(
        checkpoint="step-00000002",
        step=2,
        why="asked to",
        lost_steps=3,
        away_s=60.5,
        back_s=pytest.approx(0.1),
        restored=Restored(1000, 0.5, 2),
    )


def test_workers_restore_in_parallel_and_a_repeated_restore_counts_once():
    assert find_restored([make_restored(1, 0.5), make_restored(2, 0.1), make_restored(1, 0.2)]) == Restored(
        1000, 0.2, 2
    )
    assert find_restored([]) is None


def test_an_attempt_without_steps_has_no_time_of_return(run):
    again = msgspec.structs.replace(RESUMED, time=1002.95)
    first, second = compute_attempt_costs((RESUMED, again, *EVENTS[-1:]), run.ledger)
    assert first.back_s is None
    assert second.back_s == pytest.approx(0.05)
    assert first.restored is None


def test_the_outcome_of_a_run_is_that_of_its_newest_attempt(run):
    assert find_outcome(EVENTS[:5], live=False)[0] == "stopped"
    assert find_outcome(EVENTS[:7], live=True)[0] == "running"
    assert find_outcome(EVENTS[:7], live=False)[0] == "interrupted"
    assert collect_facts(run).outcome == "finished"


def test_the_newest_digest_may_be_that_of_an_end_by_the_script(run):
    ledger = run.ledger
    of_line = msgspec.structs.replace(ledger[1], digest=Digest("11", "22", (), ()))
    rest = (msgspec.structs.replace(line, digest=None) for line in ledger[2:])
    ledger = (ledger[0], of_line, *rest)
    last = EventLine(time=2000.0, kind="digest", step=len(ledger), detail={"parameters_sha256": "33"})
    assert find_newest_digest(ledger, ()) == ("11", 2)
    assert find_newest_digest(ledger, (last,)) == ("33", len(ledger))
    earlier = msgspec.structs.replace(last, step=len(ledger) + 3)
    assert find_newest_digest(ledger, (earlier,)) == ("11", 2)
    assert find_newest_digest(ledger[:1], ()) is None


def test_the_first_workers_of_an_attempt_do_not_count_as_changes(run):
    joined = [event for event in run.events if event.kind == "worker.joined"]
    assert [is_beginning(event, find_step(event, run.ledger), run.events) for event in joined] == [
        True,
        True,
        False,
    ]


def test_checkpoints_do_not_count_as_changes_and_have_their_own_step(run):
    facts = collect_facts(run)
    assert (facts.checkpoints, facts.resumes, facts.lost_steps) == (2, 1, 3)
    assert facts.changes == len(EVENTS) - 4
    assert [find_step(event, run.ledger) for event in run.events if event.kind == "checkpoint.saved"] == [
        2,
        6,
    ]


def test_the_metrics_have_the_attempts_and_checkpoints(run):
    metrics = compute_metrics(run)
    assert metrics.attempts == compute_attempt_costs(run.events, run.ledger)
    first = metrics.checkpoints[0]
    assert (first.name, first.step, first.used) == ("step-00000002", 2, False)
    assert (first.bytes, first.copy_s, first.write_s) == (1000, 0.002, 0.25)
    assert [one.used for one in metrics.checkpoints] == [False, True, False]


def test_the_card_has_the_repeated_steps(run):
    text = write_card_text(run, compute_metrics(run), FinishedModel(files=(("model.safetensors", 10),)))
    assert (
        "2 written, training continued from:\n- `step-00000002`, step 2: 3 steps made again, "
        "restored 1.0 kB in 0.50 s (0.00 GB/s) on 2 workers" in text
    )
    assert "1 joined, 1 died, 1 resume, 1 stopped." in text


def test_the_report_marks_the_resume_and_shades_the_repeated_steps(run):
    page = render_report(run)
    assert "step 2: elastane run resumed" in page or "step 2: resumed" in page
    assert "steps 3 to 5 were lost and made again" in page
    assert "1 resume, 3 steps made again" in page
    assert page.count('class="checkpoint"') == 1
    assert page.count('class="checkpoint used"') == 1
    for words in ("1 min", "the run continued from it", "250 ms", "2.0 ms", "1.0 kB in 0.50 s"):
        assert words in page


def test_the_report_says_if_no_checkpoint_was_needed(make_run):
    page = render_report(make_run(events=(EVENTS[0], EVENTS[2], EVENTS[-1])))
    assert "none was needed" in page
    assert "<h2>Attempts</h2>" not in page


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (None, "--checkpoint-every never"),
        (CheckpointPolicy(auto=True), ""),
        (CheckpointPolicy(every_s=600.0), '--checkpoint-every "600 s"'),
        (CheckpointPolicy(every_steps=50, keep_every=9), '--checkpoint-every "50 steps" --keep-every 9'),
        (
            CheckpointPolicy(url="s3://b/p", each_epoch=True, keep_best=("loss", "min")),
            "--checkpoint-every never --checkpoint-at epoch --checkpoint-dir s3://b/p --keep-best loss:min",
        ),
    ],
)
def test_the_command_in_the_report_has_the_checkpoint_options_of_the_run(run, policy, words):
    spec = msgspec.structs.replace(run.record.spec, checkpoints=policy)
    command = shlex.split(format_command(msgspec.structs.replace(run.record, spec=spec)))
    assert command == shlex.split(f"elastane run --workers 1:8 --start 1 {words} train.py")


def test_the_command_of_a_self_sizing_run_has_no_start() -> None:
    spec = RunSpec(name="r", script="train.py", self_sizing=True)
    record = RunRecord(spec=spec, created="")
    assert format_command(record) == "elastane run --workers 1:8 --checkpoint-every never train.py"


def test_the_command_has_only_the_options_that_were_typed() -> None:
    spec = RunSpec(
        name="r", script="train.py", args=("--lr", "1e-3"), checkpoints=CheckpointPolicy(auto=True)
    )
    record = RunRecord(spec=spec, created="", typed=("--seed", "0", "--checkpoint-every", "10 min"))
    shown = format_command(record)
    assert shown == "elastane run --seed 0 --checkpoint-every '10 min' train.py --lr 1e-3"
    assert format_command(RunRecord(spec=spec, created="", typed=())) == "elastane run train.py --lr 1e-3"
