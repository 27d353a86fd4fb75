"""``elastane checkpoint now`` waits for the right checkpoint, even if the coordinator is replaced."""

import json

import msgspec
import pytest

from elastane.cli.checkpoints import now as checkpoint_now
from elastane.common.errors import NoSuchRun
from elastane.run.nouns.checkpoint_policy import CheckpointSettings, parse_checkpoint_policy
from elastane.run.nouns.control import Answer, AskCheckpoint
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.spec import CheckpointPolicy
from elastane.run.observability.run_files import read_record


class Live:
    """A fake live run: each poll of its coordinator triggers the next prepared event."""

    def __init__(self, run_dir, monkeypatch):
        self.run_dir, self.asks, self.term, self.looks = run_dir, [], 1, []
        self.live = True
        monkeypatch.setattr(checkpoint_now, "is_live", lambda _: self.live)
        monkeypatch.setattr(checkpoint_now, "send_request", self.answer)
        monkeypatch.setattr(checkpoint_now, "LOOK_S", 0.0)

    def answer(self, _run_dir, question):
        self.asks.append(question)
        if len(self.asks) > 1 and self.looks:
            self.looks.pop(0)()
        if not self.live:
            raise NoSuchRun("over")
        return Answer(ok=True, step=40, term=self.term)

    def record_event(self, kind, why="", **detail):
        with self.run_dir.events.open("ab") as file:
            file.write(msgspec.json.encode(EventLine(time=1.0, kind=kind, why=why, detail=detail)) + b"\n")

    def save_checkpoint(self, step):
        self.record_event("checkpoint.saved", name=f"step-{step:08d}", step=step, bytes=1500)


@pytest.fixture
def live(finished_run, monkeypatch):
    run_dir = finished_run()
    record = read_record(run_dir)
    spec = msgspec.structs.replace(record.spec, checkpoints=CheckpointPolicy(auto=True))
    run_dir.run.write_bytes(msgspec.json.encode(msgspec.structs.replace(record, spec=spec)))
    return Live(run_dir, monkeypatch)


def test_without_wait_the_command_returns_when_the_run_has_accepted(elastane, live):
    result = elastane("checkpoint", "now", "done")
    assert result.exit_code == 0
    assert result.stdout == "accepted: the run writes a checkpoint of step 40 or a little later\n"
    assert live.asks == [AskCheckpoint()]
    assert json.loads(elastane("checkpoint", "now", "done", "--json").stdout) == {"ok": True, "step": 40}


def test_with_wait_the_command_waits_for_a_checkpoint_of_that_step_and_prints_failures(elastane, live):
    live.save_checkpoint(45)  # before the request
    live.looks = [
        lambda: live.save_checkpoint(39),
        lambda: live.record_event("checkpoint.failing", why="step-00000041: no room left"),
        lambda: live.save_checkpoint(41),
    ]
    result = elastane("checkpoint", "now", "done", "--wait")
    assert result.exit_code == 0
    assert "no room left" in result.stdout
    assert result.stdout.endswith("step-00000041 is written: 1.5 kB\n")


def test_the_request_is_repeated_to_the_next_coordinator(elastane, live):
    live.looks = [lambda: setattr(live, "term", 2), lambda: None, lambda: live.save_checkpoint(40)]
    result = elastane("checkpoint", "now", "done", "--wait", "--json")
    assert json.loads(result.stdout) == {"ok": True, "name": "step-00000040", "step": 40, "bytes": 1500}
    assert live.asks.count(AskCheckpoint()) == 2


def test_the_last_checkpoint_of_a_run_counts(elastane, live):
    def end():
        live.save_checkpoint(50)
        live.live = False

    live.looks = [end]
    assert "step-00000050 is written" in elastane("checkpoint", "now", "done", "--wait").stdout


def test_a_run_that_ends_without_a_checkpoint_is_a_failure(elastane, live):
    live.looks = [lambda: setattr(live, "live", False)]
    result = elastane("checkpoint", "now", "done", "--wait")
    assert result.exit_code == 1
    assert "ended before the checkpoint was written" in result.stderr


def test_a_run_that_keeps_no_checkpoints_prints_what_to_do(elastane, finished_run, monkeypatch):
    finished_run()
    assert elastane("checkpoint", "now", "done").exit_code == 3
    monkeypatch.setattr(checkpoint_now, "is_live", lambda _: True)
    result = elastane("checkpoint", "now", "done")
    assert result.exit_code == 2
    assert "start a run with --checkpoint-every never --checkpoint-dir URL" in result.stderr


def test_never_means_none_unless_an_event_or_a_directory_is_named():
    assert parse_checkpoint_policy(CheckpointSettings(every="never")) is None
    assert parse_checkpoint_policy(CheckpointSettings(every="never", keep_last=5)) is None
    for wish in ({"at": ("epoch",)}, {"url": "/there"}):
        policy = parse_checkpoint_policy(CheckpointSettings(every="never", **wish))
        assert (policy.every_s, policy.every_steps, policy.auto) == (None, None, False)
