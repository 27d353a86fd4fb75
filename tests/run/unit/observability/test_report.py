"""The report shows all events of a run; texts of a run cannot break the page."""

import json
import re

import msgspec
import pytest

from elastane.run.nouns.checkpoints import WrittenFile
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.spec import RunSpec
from elastane.run.observability.report import render_report, write_report
from elastane.run.observability.verify import verify_ledger

EVENTS = (
    EventLine(time=1000.0, kind="run.started", why="two workers"),
    EventLine(time=1002.5, kind="worker.joined", who="worker 1", step=3, generation=2),
    EventLine(
        time=1003.0,
        kind="generation.started",
        why="worker 1 joined",
        step=3,
        generation=2,
        workers=(0, 1),
        pause_ms={0: 12.3},
        pause_steps={0: 0.06},
    ),
    EventLine(time=1004.1, kind="coordinator.died", why="signal 9"),
    EventLine(time=1005.0, kind="evaluation", step=5, detail={"accuracy": 0.875}),
    EventLine(time=1006.2, kind="run.finished"),
)


def test_every_event_is_on_the_page_with_its_pauses(make_run) -> None:
    page = render_report(make_run(events=EVENTS))
    for event in EVENTS:
        assert event.kind in page
    assert "12 ms" in page
    assert "0.06 steps" in page
    assert "0.875" in page


def test_an_event_without_a_step_belongs_to_the_newest_commit(make_run) -> None:
    page = render_report(make_run(events=EVENTS))
    assert "step 4: coordinator died (signal 9)" in page


def test_the_page_loads_nothing_from_elsewhere(make_run) -> None:
    page = render_report(make_run(events=EVENTS))
    assert "http" not in page
    assert not re.search(r"<(link|img|iframe)|\ssrc=|@import|url\(", page)


def test_every_text_of_a_run_is_escaped(make_run) -> None:
    evil = "</script><script>alert('&')</script>"
    run = make_run(
        events=(
            EventLine(time=1.0, kind="worker.died", who=evil, why=evil, step=2),
            EventLine(time=2.0, kind=evil, detail={evil: evil}),
            EventLine(time=2.0, kind="evaluation", why=evil, detail={evil: evil}),
            EventLine(time=3.0, kind="run.failed", why=evil),
        )
    )
    spec = RunSpec(name=evil, script=evil, args=(evil,))
    page = render_report(msgspec.structs.replace(run, record=msgspec.structs.replace(run.record, spec=spec)))
    assert "<script>alert" not in page
    assert page.count("</script>") == 2


def test_the_page_has_the_key_numbers(make_run, rules) -> None:
    run = make_run(events=EVENTS)
    page = render_report(run, verify_ledger(run.record.pinned, run.ledger, rules, finished=True))
    for text in ("finished", "1\u20132", "e" * 12, "AdamW(lr=0.001)", "Verified: no step is missing"):
        assert text in page


def test_a_loss_that_is_not_finite_leaves_a_gap(make_run) -> None:
    run = make_run(change=lambda line: msgspec.structs.replace(line, loss=None) if line.step == 3 else line)
    curve = re.search(r'class="curve" d="([^"]*)"', render_report(run))
    assert curve
    assert curve[1].count("M") == 2


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_run_without_steps_has_a_page_too(make_run, steps) -> None:
    assert "<h1>trial</h1>" in render_report(make_run(steps=steps, events=()))


def test_the_page_of_a_long_run_is_small_and_keeps_the_spikes(make_run) -> None:
    run = make_run()
    line = run.ledger[0]
    ledger = tuple(
        msgspec.structs.replace(
            line,
            step=step,
            loss=9.0 if step == 77_777 else 1.0 + step % 7 / 10,
            workers={step % 5: ((0, 4),)},
        )
        for step in range(1, 100_001)
    )
    page = render_report(msgspec.structs.replace(run, ledger=ledger, events=EVENTS * 700))
    assert len(page) < 2_000_000
    hover = re.search(r'id="hover">(.*?)</script>', page)
    assert hover
    points = json.loads(hover[1])["points"]
    assert [77_777, 9.0] in [point[:2] for point in points]
    assert points[-1][0] == 100_000


def test_the_page_is_replaced_atomically(make_run) -> None:
    run = make_run()
    path = write_report(run).report
    assert path.read_text().startswith("<!doctype html>")
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]


def test_text_artifacts_are_shown_newest_first_and_escaped(make_run) -> None:
    run = make_run()
    written = {
        "sample.txt": WrittenFile(bytes=1, checksum=""),
        "image.png": WrittenFile(bytes=1, checksum=""),
    }
    marked = {1: written, 3: written, 4: {"../run.txt": WrittenFile(bytes=1, checksum="")}}
    ledger = tuple(msgspec.structs.replace(line, artifacts=marked.get(line.step, {})) for line in run.ledger)
    for step, text in ((1, "early"), (3, "<b>late\x1b</b>")):
        folder = run.run_dir.artifacts / f"step-{step}"
        folder.mkdir(parents=True)
        (folder / "sample.txt").write_text(text)
    page = render_report(msgspec.structs.replace(run, ledger=ledger))
    late, early = page.index("step 3: sample.txt"), page.index("step 1: sample.txt")
    assert late < page.index("&lt;b&gt;late") < early < page.index("early")
    assert "\x1b" not in page
    assert "image.png" not in page
    assert "run.txt" not in page


def test_a_report_copies_no_text_from_behind_a_linked_folder(make_run, tmp_path) -> None:
    run = make_run()
    (tmp_path / "private").mkdir()
    (tmp_path / "private/sample.txt").write_text("zebra")
    run.run_dir.artifacts.mkdir()
    (run.run_dir.artifacts / "step-3").symlink_to(tmp_path / "private")
    written = {"sample.txt": WrittenFile(bytes=1, checksum="")}
    ledger = tuple(msgspec.structs.replace(line, artifacts=written) for line in run.ledger)
    assert "zebra" not in render_report(msgspec.structs.replace(run, ledger=ledger))
