"""Output of a run that was resumed from a checkpoint."""

import io

import msgspec
import pytest
from rich.console import Console

from elastane.cli.runs.run_display import combine_restored_events, describe_run_event
from elastane.cli.runs.watcher import Watcher
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.spec import RunSpec


def make_restored(worker, seconds):
    return EventLine(
        time=10.0,
        kind="checkpoint.restored",
        who=f"worker {worker}",
        step=1500,
        workers=(worker,),
        detail={"name": "step-00001500", "bytes": 400_000_000, "seconds": seconds},
    )


def test_the_restores_of_all_workers_are_one_line():
    together = combine_restored_events([make_restored(3, 0.5), make_restored(4, 0.8), make_restored(5, 0.7)])
    assert describe_run_event(together).plain == (
        " step 1500  checkpoint.restored  step-00001500: 1.2 GB in 0.80 s (1.50 GB/s) on 3 workers"
    )
    alone = combine_restored_events([make_restored(3, 0.4)])
    assert describe_run_event(alone).plain.endswith("(1.00 GB/s) on 1 worker")


def test_a_watcher_of_a_new_attempt_does_not_print_the_old_one_again(finished_run, lines):
    run_dir = finished_run()
    screen = io.StringIO()
    watcher = Watcher(run_dir, RunSpec(name="done", script="train.py"), Console(file=screen, width=200))
    assert watcher.progress.step == 4
    assert len(watcher.progress.curve.values) == 4
    assert watcher.progress.left_s is None
    watcher.look()
    assert screen.getvalue() == ""
    began = EventLine(time=11.0, kind="generation.started", step=5, workers=(1, 2), why="they begin")
    with run_dir.events.open("ab") as file:
        for event in (make_restored(1, 0.5), make_restored(2, 0.8), began):
            file.write(msgspec.json.encode(event) + b"\n")
    with run_dir.ledger.open("ab") as file:
        file.write(msgspec.json.encode(lines(5)) + b"\n")
    watcher.look()
    said = [line.strip() for line in screen.getvalue().splitlines()]
    assert said[0].startswith("step 5/4  loss 0.2000")
    assert said[1:] == [
        "step 1500  checkpoint.restored  step-00001500: 800.0 MB in 0.80 s (1.00 GB/s) on 2 workers",
        "step 5  generation.started  workers 1, 2; they begin",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--resume", "done", "--seed", "7", "--name", "new"),
            "cannot be combined with --seed, --name",
        ),
        (("--resume", "done", "--digest-every", "5"), "--resume cannot be combined with --digest-every"),
        (("--accept-changes", "train.py"), "--accept-changes needs --resume"),
        (("--resume", "done", "train.py"), "cannot be combined with the script train.py"),
    ],
)
def test_options_that_a_resume_cannot_change_are_refused(elastane, finished_run, words, said):
    run_dir = finished_run()
    before = {path: path.read_bytes() for path in run_dir.root.rglob("*") if path.is_file()}
    result = elastane("run", *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert {path: path.read_bytes() for path in run_dir.root.rglob("*") if path.is_file()} == before
