"""Output, files and exit codes of ``elastane run`` with an agent that trains nothing."""

import asyncio
import errno
import json
import os
import re
import signal
from collections.abc import Callable

import msgspec
import pytest

from elastane.common.errors import BadInput
from elastane.run.attempts.supervision import MOST_FUTILE_ATTEMPTS
from elastane.run.nouns.control import RunOver
from elastane.run.nouns.hosts import MOST_SLOTS
from elastane.run.nouns.notices import NOTICES
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import Resumed, RunRecord, RunSpec
from elastane.run.observability.run_files import read_run

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3\nValueError: [bold]no[/bold]\n'

CTRL_C = ((signal.SIGINT, "stop"), (signal.SIGINT, "kill"))
"""Signals, and the function of the agent that each one calls."""


class PretendAgent:
    """An agent that writes the files of a run of two steps, then ends with a given outcome."""

    over = RunOver(code=0)
    signals: tuple[tuple[signal.Signals, str], ...] = ()
    torn = b""
    kept = False
    target = 1
    steps: Callable

    def __init__(self, run_dir: RunDir, spec: RunSpec, resumed=None) -> None:
        self.run_dir = run_dir
        self.spec = spec
        self.calls: list[str] = []
        self.called = asyncio.Event()

    def stop(self) -> None:
        self.calls.append("stop")
        self.called.set()

    def kill(self) -> None:
        self.calls.append("kill")
        self.called.set()

    async def run(self) -> RunOver:
        record = msgspec.json.decode(self.run_dir.run.read_bytes(), type=RunRecord)
        assert record.spec == self.spec
        with self.run_dir.ledger.open("wb") as ledger:
            for step in (1, 2):
                ledger.write(msgspec.json.encode(type(self).steps(step)) + b"\n")
            ledger.write(self.torn)
        event = EventLine(time=102.5, kind="worker.joined", who="worker 0", why="[red]first[/red]", step=1)
        saved = EventLine(time=102.6, kind="checkpoint.saved", step=1)
        events = (event, saved) if self.kept else (event,)
        self.run_dir.events.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in events))
        for number, call in self.signals:
            self.called.clear()
            self.calls.clear()
            os.kill(os.getpid(), number)
            if call:
                await self.called.wait()
            await asyncio.sleep(0)  # not a wait: a call that must not come would come now
            assert self.calls == ([call] if call else [])
        if self.over.code == 0:
            self.run_dir.model_files.weights.write_bytes(b"")
        return self.over


@pytest.fixture
def agent(monkeypatch, lines) -> type[PretendAgent]:
    kind = type("Agent", (PretendAgent,), {"steps": staticmethod(lines)})
    monkeypatch.setattr("elastane.run.agent.agent.Agent", kind)
    return kind


def test_a_finished_run_prints_where_its_files_are(agent, elastane, script, home) -> None:
    result = elastane("run", "--name", "trial", script)
    assert result.exit_code == 0
    directory = home / "runs" / "trial"
    for words in (
        f"run trial in {directory}",
        "worker.joined  worker 0; [red]first[/red]",
        "step 2  loss 0.5000  1 worker",
        "finished after 2 steps",
        "abab",
        str(directory / "model.safetensors"),
        str(directory / "report.html"),
    ):
        assert words in result.stdout
    assert (directory / "report.html").exists()


def test_more_workers_than_one_machine_has_are_refused(agent, elastane, script, monkeypatch) -> None:
    monkeypatch.setattr("elastane.run.nouns.connection_limits.read_descriptor_limit", lambda: 1 << 20)
    words = ("--workers", f"1:{MOST_SLOTS + 1}", "--virtual-ranks", str(2 * MOST_SLOTS))
    refused = elastane("run", "--name", "trial", *words, script)
    assert refused.exit_code == 2
    assert f"one machine has at most {MOST_SLOTS}" in re.sub(r"\s+", " ", refused.output)


def test_with_json_stdout_is_one_object_and_progress_goes_to_stderr(agent, elastane, script, home) -> None:
    result = elastane("run", "--name", "trial", "--json", script)
    answer = json.loads(result.stdout)
    assert answer["exit_code"] == 0
    assert answer["name"] == "trial"
    assert (answer["steps"], answer["loss"], answer["workers"]) == (2, 0.5, [1, 1])
    assert answer["digest"] == ["ab" * 32, 2]
    assert "finished after 2 steps" in result.stderr


def test_the_options_that_were_typed_are_recorded(agent, elastane, script, home) -> None:
    elastane("run", "--name", "r", "--workers", "1:2", "--save-optimizer", script, "--seed", "3")
    record = msgspec.json.decode((home / "runs" / "r" / "run.json").read_bytes(), type=RunRecord)
    assert record.typed == ("--workers", "1:2", "--name", "r", "--save-optimizer")
    assert record.spec.args == ("--seed", "3")


def test_all_arguments_after_the_script_belong_to_the_script(agent, elastane, script, home) -> None:
    result = elastane("run", "--seed", "3", "--name", "trial", script, "--seed", "9", "--json", "-x", "data")
    assert result.exit_code == 0
    record = msgspec.json.decode((home / "runs" / "trial" / "run.json").read_bytes(), type=RunRecord)
    assert record.spec.seed == 3
    assert record.spec.args == ("--seed", "9", "--json", "-x", "data")


def test_a_failed_run_prints_the_traceback_of_the_worker(agent, elastane, script) -> None:
    agent.over = RunOver(code=1, why="the script raised in worker 0", traceback=TRACEBACK)
    result = elastane("run", script)
    assert result.exit_code == 1
    assert TRACEBACK in result.stderr
    assert "failed after 2 steps" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "error", "advice"),
    [
        (("--workers", "2"), "the script ended with SystemExit(2)\n", "write --workers before train.py"),
        (
            ("--lr", "1", "--workers=2", "--start=1"),
            "the script ended with SystemExit(2)\n",
            "--workers and --start",
        ),
        (("--lr", "1"), "the script ended with SystemExit(2)\n", ""),
        (("--workers", "2"), TRACEBACK, ""),
    ],
)
def test_an_option_after_the_script_that_the_script_refuses_is_named(
    agent, elastane, script, arguments, error, advice
) -> None:
    agent.over = RunOver(code=1, why="the script raised in worker 0", traceback=error)
    result = elastane("run", script, *arguments)
    assert advice in result.stderr
    assert ("before train.py" in result.stderr) == bool(advice)


@pytest.mark.parametrize("part", ["folder", "script", "argument"])
def test_names_that_are_not_utf_8_are_refused(elastane, script, tmp_path, monkeypatch, part) -> None:
    odd = os.fsdecode(b"odd\xff")
    if part == "folder":
        (tmp_path / odd).mkdir()
        monkeypatch.chdir(tmp_path / odd)
    elif part == "script":
        script = script.rename(tmp_path / f"{odd}.py")
    result = elastane("run", script, *([odd] if part == "argument" else []))
    assert result.exit_code == 2
    assert "odd\\udcff" in result.stderr
    assert "is not UTF-8" in result.stderr


@pytest.mark.parametrize(
    ("kept", "onward"), [(True, "continues from its newest checkpoint"), (False, "begins the run again")]
)
def test_a_stopped_run_prints_how_to_resume_it(agent, elastane, script, home, kept, onward) -> None:
    agent.signals, agent.over, agent.kept = CTRL_C[:1], RunOver(code=130, why="stopped after step 2"), kept
    result = elastane("run", "--name", "trial", script)
    assert f"elastane run --resume {home / 'runs' / 'trial'} {onward}" in result.stdout


@pytest.mark.parametrize("kept", [True, False])
def test_a_failed_script_with_a_checkpoint_may_go_on_when_it_is_mended(
    agent, elastane, script, home, kept
) -> None:
    agent.over, agent.kept = RunOver(code=1, traceback=TRACEBACK), kept
    result = elastane("run", "--name", "trial", script)
    onward = f"elastane run --resume {home / 'runs' / 'trial'} --accept-changes goes on from its newest"
    assert (onward in result.stdout) == kept


def test_the_first_interrupt_stops_the_run_at_the_next_commit(agent, elastane, script) -> None:
    agent.signals, agent.over = CTRL_C[:1], RunOver(code=130)
    result = elastane("run", script)
    assert result.exit_code == 130
    assert "stopping at the next commit" in result.stdout
    assert "stopped after 2 steps" in result.stdout


def test_the_second_interrupt_kills_the_run_and_is_not_a_failure(agent, elastane, script) -> None:
    agent.signals, agent.over = CTRL_C, RunOver(code=1, traceback=TRACEBACK)
    result = elastane("run", script)
    assert result.exit_code == 130
    assert "Traceback" not in result.stderr


@pytest.fixture
def hangups():
    """SIGHUP counts, although these tests may run under nohup, which ignores it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize("number", NOTICES)
def test_repeated_notices_stop_the_run_once_and_only_a_second_interrupt_kills_it(
    agent, elastane, script, number
) -> None:
    """Schedulers send one to all processes, and repeat it."""
    agent.signals, agent.over = (
        ((number, "stop"), (number, ""), (signal.SIGTERM, ""), *CTRL_C),
        RunOver(code=130),
    )
    result = elastane("run", script)
    assert result.exit_code == 130
    if number != signal.SIGHUP:
        assert f"{number.name}: stopping at the next commit; press Ctrl-C twice" in result.stdout
        assert result.stdout.count("stopping at the next commit") == 2


def test_no_attempt_begins_after_a_notice(agent, elastane, script) -> None:
    agent.signals, agent.over = ((signal.SIGTERM, "stop"),), RunOver(code=1, why="all copies died", lost=True)
    agent.kept = True
    assert elastane("run", script).exit_code == 1


def test_a_run_that_was_killed_is_recorded_as_stopped(agent, elastane, script) -> None:
    agent.signals, agent.over = CTRL_C, RunOver(code=130, why="killed by the user")
    elastane("run", "--name", "trial", script)
    (row,) = json.loads(elastane("list", "--json").stdout)
    assert row["state"] == "stopped"


def test_lines_torn_by_a_kill_are_removed(agent, elastane, script, home) -> None:
    agent.torn = b'{"step": 3, "gener'
    agent.over = RunOver(code=1, why="the coordinator process died 5 times within 10 s")
    elastane("run", "--name", "trial", script)
    run = read_run(RunDir(home / "runs" / "trial"))
    assert [line.step for line in run.ledger] == [1, 2]
    assert (run.events[-1].kind, run.events[-1].why) == ("run.failed", agent.over.why)


def test_a_generated_name_begins_with_that_of_the_script(agent, elastane, script, home) -> None:
    assert elastane("run", script).exit_code == 0
    assert elastane("run", script).exit_code == 0
    names = [entry.name for entry in (home / "runs").iterdir()]
    assert len(names) == 2
    assert all(name.startswith("train-") for name in names)


def test_a_run_in_another_directory_is_listed_by_its_name(agent, elastane, script, tmp_path) -> None:
    assert elastane("run", "--name", "trial", "--run-dir", tmp_path / "there", script).exit_code == 0
    rows = json.loads(elastane("list", "--json").stdout)
    assert [(row["name"], row["directory"], row["step"]) for row in rows] == [
        ("trial", str(tmp_path / "there"), 2)
    ]


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("fault", "value", "words"),
    [
        ("denied", "/runs/", "cannot write the claim list s3://claims/runs/demo-"),
        ("ignores_conditions", True, "does not honour conditional creates (If-None-Match: *)"),
    ],
)
def test_a_claim_list_that_cannot_be_written_is_refused_before_anything_starts(
    elastane, script, claims_server, monkeypatch, *, fault, value, words
) -> None:
    class Begun(Exception):
        pass

    def begin(*_):
        raise Begun

    monkeypatch.setattr("elastane.cli.runs.run._train", begin)
    command = ("run", "--listen", "127.0.0.2", "--claims", "s3://claims/runs", "--name", "demo", script)
    setattr(claims_server, fault, value)
    for _ in range(2):
        # The directory stays free for the same command.
        answer = elastane(*command)
        assert answer.exit_code == 2
        assert words in " ".join(answer.output.split())
        assert "do:" in answer.output
    claims_server.heal()
    assert isinstance(elastane(*command).exception, Begun)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_a_resumed_run_needs_a_claim_list_that_can_be_written(
    finished_run, elastane, script, claims_server, monkeypatch
) -> None:
    run_dir = finished_run("demo")
    record = msgspec.json.decode(run_dir.run.read_bytes(), type=RunRecord)
    spec = msgspec.structs.replace(
        record.spec, listen="127.0.0.2", claims="s3://claims/runs", script=str(script)
    )
    run_dir.run.write_bytes(msgspec.json.encode(msgspec.structs.replace(record, spec=spec)))
    run_dir.secret.write_text("5" * 64)
    monkeypatch.setattr("elastane.cli.runs.run.prepare_resumption", lambda *_, **__: pytest.fail("it began"))
    claims_server.denied = "/runs/"
    answer = elastane("run", "--resume", "demo")
    assert answer.exit_code == 2
    assert "cannot write the claim list s3://claims/runs/demo-" in " ".join(answer.output.split())


def test_a_run_directory_without_hard_links_takes_no_other_machines(
    elastane, script, home, monkeypatch
) -> None:
    def refuse(partial, target, **_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(partial), None, str(target))

    monkeypatch.setattr("elastane.common.atomic_file.os.link", refuse)
    monkeypatch.setattr("elastane.cli.runs.run._train", lambda *_: pytest.fail("it began"))
    answer = elastane("run", "--listen", "127.0.0.2", "--name", "demo", script)
    assert answer.exit_code == 2
    assert "its file system refuses hard links" in " ".join(answer.output.split())


def test_a_name_cannot_be_used_twice(agent, elastane, script, home) -> None:
    elastane("run", "--name", "trial", script)
    again = elastane("run", "--name", "trial", script)
    assert again.exit_code == 2
    assert "already holds a run" in again.stderr


def test_a_card_that_cannot_be_written_is_reported_and_the_run_still_succeeds(
    agent, elastane, script, home, monkeypatch
) -> None:
    def fail_with_full_disk(*_args: object) -> None:
        raise BadInput("cannot write metrics.json: No space left on device")

    monkeypatch.setattr("elastane.run.observability.finished._write_file", fail_with_full_disk)
    result = elastane("run", "--name", "trial", "--json", script)
    assert result.exit_code == 0
    assert "no metrics and no card: cannot write metrics.json" in result.stderr
    assert json.loads(result.stdout)["card"] is None
    assert json.loads(result.stdout)["report"] == str(home / "runs" / "trial" / "report.html")


def test_a_run_that_keeps_losing_its_state_is_not_resumed_for_ever(
    agent, elastane, script, home, monkeypatch
) -> None:
    """An attempt without a checkpoint newer than its first one counts as futile."""
    agent.over, agent.kept = RunOver(code=1, why="every copy died", lost=True), True
    attempts = []

    def resume(run_dir, spec, say, *, why) -> RunRecord:
        attempts.append(spec)
        record = msgspec.json.decode(run_dir.run.read_bytes(), type=RunRecord)
        step = 10 * min(len(attempts), 3)
        resumed = Resumed(checkpoint=f"step-{step:08d}", step=step, times=1, first_worker=1, first_term=2)
        return msgspec.structs.replace(record, resumed=resumed)

    monkeypatch.setattr("elastane.run.attempts.supervision.prepare_resumption", resume)
    result = elastane("run", script)
    assert result.exit_code == 1
    assert len(attempts) == 3 + MOST_FUTILE_ATTEMPTS
    directory = next((home / "runs").iterdir())
    assert f"elastane run --resume {directory} goes back to its newest checkpoint" in result.stdout


def test_a_run_that_loses_its_state_goes_on_with_its_latest_number_of_workers(
    agent, elastane, script, monkeypatch
) -> None:
    """The run must not take back devices that it has released."""
    agent.over, agent.kept, agent.target = RunOver(code=1, why="every copy died", lost=True), True, 2
    wanted = []

    def resume(run_dir, spec, say, *, why) -> RunRecord:
        wanted.append(spec.start)
        raise BadInput("there is no checkpoint")

    monkeypatch.setattr("elastane.run.attempts.supervision.prepare_resumption", resume)
    assert elastane("run", "--start", "4", "--workers", "1:8", script).exit_code == 1
    assert wanted == [2]


def test_a_run_that_cannot_be_resumed_prints_why(agent, elastane, script, monkeypatch) -> None:
    agent.over = RunOver(code=1, why="every copy died", lost=True)

    def refuse_attempt(*_: object, **__: object) -> RunRecord:
        raise BadInput("there is no checkpoint")

    monkeypatch.setattr("elastane.run.attempts.supervision.prepare_resumption", refuse_attempt)
    result = elastane("run", script)
    assert result.exit_code == 1
    assert "cannot resume: there is no checkpoint" in result.stdout
    assert "every copy died" in result.stdout
    assert "elastane run --resume" not in result.stdout
