"""Output, exit codes and refusals of the commands for runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import xxhash

from elastane.cli.timestamps import format_timestamp
from elastane.run.nouns.control import (
    Answer,
    AskDrain,
    AskDrainNode,
    AskResize,
    AskStatus,
    AskStop,
    ProcessInfo,
)
from elastane.run.nouns.rundir import RunDir

from .conftest import EVENTS

COMMANDS = ("run", "resize", "drain", "stop", "ps", "events", "logs", "list", "verify", "report")


def test_the_help_has_an_example_the_commands_and_the_exit_codes(elastane) -> None:
    page = elastane("--help").stdout
    for words in ("elastane.join()", "elastane run --workers", "Exit codes", "130", *COMMANDS):
        assert words in page


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_takes_json(elastane, command) -> None:
    page = elastane(command, "--help")
    assert page.exit_code == 0
    assert "--json" in page.stdout


def test_the_command_line_loads_neither_torch_nor_sockets() -> None:
    code = "import sys, elastane.cli.main; print({'torch', 'numpy', 'websockets'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    "words",
    [
        ("ps", "nobody"),
        ("resize", "nobody", "2"),
        ("drain", "nobody", "0"),
        ("stop", "nobody"),
        ("events", "nobody"),
        ("logs", "nobody"),
        ("verify", "nobody"),
        ("report", "nobody"),
    ],
)
def test_an_unknown_run_is_exit_code_3(elastane, words) -> None:
    result = elastane(*words)
    assert result.exit_code == 3
    assert "nobody" in result.stderr
    assert result.stdout == ""


def test_an_error_with_json_is_an_object_too(elastane) -> None:
    result = elastane("verify", "nobody", "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["exit_code"] == 3


@pytest.mark.parametrize("words", [("ps",), ("resize", "2"), ("drain", "0"), ("stop",)])
def test_requests_to_a_finished_run_are_exit_code_3(elastane, finished_run, words) -> None:
    finished_run()
    command, *rest = words
    result = elastane(command, "done", *rest)
    assert result.exit_code == 3
    assert result.stderr.startswith("error: ")


@pytest.mark.parametrize(
    "words",
    [
        ("run", "no-such.py"),
        ("run", "--workers", "3:1", "SCRIPT"),
        ("run", "--nonsense", "SCRIPT"),
        ("resize", "done", "none"),
        ("resize", "done", "0"),
    ],
)
def test_invalid_arguments_are_exit_code_2(elastane, script, words) -> None:
    assert elastane(*(str(script) if word == "SCRIPT" else word for word in words)).exit_code == 2


def test_only_run_needs_its_options_before_the_script(elastane) -> None:
    assert "options of elastane run go before it" in elastane("run", "no-such.py").stderr
    answer = elastane("submit", "no-such.py", "--dry-run")
    assert "there is no script no-such.py" in answer.stderr
    assert "go before it" not in answer.stderr


@pytest.mark.parametrize("word", ["10.0.0.256", "foo"])
def test_a_mistyped_address_is_not_only_taken_for_the_script(elastane, script, word) -> None:
    answer = elastane("run", "--listen", word, str(script))
    assert answer.exit_code == 2
    assert f"there is no script {word}" in answer.stderr
    assert f"if {word} is the script" in answer.stderr
    assert "such as --listen 10.0.0.5, before the script" in " ".join(answer.stderr.split())


def test_an_honest_run_is_proved(elastane, finished_run) -> None:
    finished_run()
    result = elastane("verify", "done")
    assert result.exit_code == 0
    assert "4 of 4 steps in 1 generation, 16 samples" in result.stdout
    assert "epoch 1: 8 samples once, 0 never, 0 repeatedly" in result.stdout
    assert "proved" in result.stdout


def test_a_gap_is_exit_code_1(elastane, finished_run) -> None:
    run_dir = finished_run()
    kept = run_dir.ledger.read_bytes().splitlines(keepends=True)
    run_dir.ledger.write_bytes(b"".join(kept[:1] + kept[2:]))
    result = elastane("verify", "done", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["ok"] is False
    assert {problem["kind"] for problem in found["problems"]} == {"steps", "samples"}


def test_verify_says_whether_the_files_of_the_model_have_checksums(elastane, finished_run) -> None:
    run_dir = finished_run()
    result = elastane("verify", "done")
    assert result.exit_code == 0
    assert "the version that made this run recorded no checksums" in result.stdout
    assert "proved from the ledger: " in result.stdout
    raw = b"weights"
    run_dir.model_files.weights.write_bytes(raw)
    files = {"model.safetensors": {"bytes": len(raw), "checksum": xxhash.xxh3_128_hexdigest(raw)}}
    event = {"time": 105.0, "kind": "run.finished", "step": 4, "files": files}
    run_dir.events.write_text(run_dir.events.read_text() + json.dumps(event) + "\n")
    result = elastane("verify", "done")
    assert result.exit_code == 0
    assert "1 file of the finished model unchanged" in result.stdout
    assert "proved: nothing is missing" in result.stdout
    run_dir.model_files.weights.write_bytes(b"weighty")
    result = elastane("verify", "done")
    assert result.exit_code == 1
    assert "model: model.safetensors is not the file that the run wrote" in result.stdout


def test_a_changed_loss_is_exit_code_1(elastane, finished_run) -> None:
    run_dir = finished_run()
    finished_run("other")
    text = run_dir.ledger.read_bytes()
    run_dir.ledger.write_bytes(text.replace(b'"loss":0.5,', b'"loss":0.25,'))
    result = elastane("verify", "done")
    assert result.exit_code == 1
    assert "loss: step 2: loss 0.25 is 0x1.0000000000000p-2, loss_hex 0x1.0000000000000p-1" in result.stdout
    result = elastane("verify", "other", "done")
    assert result.exit_code == 1
    assert "loss differs first at step 2" in result.stdout


def test_a_damaged_ledger_is_exit_code_2(elastane, finished_run) -> None:
    run_dir = finished_run()
    run_dir.ledger.write_bytes(run_dir.ledger.read_bytes() + b'{"step": 5')
    result = elastane("verify", str(run_dir.root))
    assert result.exit_code == 2
    assert "line 5" in result.stderr


def test_two_runs_are_equal_or_the_difference_is_named(elastane, finished_run) -> None:
    finished_run("a")
    finished_run("b")
    finished_run("c", first_loss=1.5)
    finished_run("d", seed=1)
    assert elastane("verify", "a", "b").exit_code == 0
    different = elastane("verify", "a", "c")
    assert different.exit_code == 1
    assert "loss differs first at step 1" in different.stdout
    incomparable = elastane("verify", "a", "d")
    assert incomparable.exit_code == 1
    assert "seed (must be equal): 0 against 1" in incomparable.stdout


def test_report_writes_the_report_again(elastane, finished_run) -> None:
    run_dir = finished_run()
    result = elastane("report", "done")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [str(run_dir.report), str(run_dir.metrics)]
    assert "Samples of each epoch" in run_dir.report.read_text()


def test_events_have_times_and_begin_at_a_time(elastane, finished_run, monkeypatch) -> None:
    finished_run()
    monkeypatch.setattr("elastane.cli.events.time.time", lambda: 110.0)
    times = [line[:19] for line in elastane("events", "done").stdout.splitlines()]
    assert times == [format_timestamp(event.time) for event in EVENTS]
    for options in ((), ("--follow",)):
        (last,) = elastane("events", "done", "--since", "6 s", *options).stdout.splitlines()
        assert last.startswith(format_timestamp(104.5))
        assert "run.finished" in last
    assert elastane("events", "done", "--since", "soon").exit_code == 2
    assert "--since needs NAME" in elastane("events", "-f", "--since", "1h").stderr


def test_events_and_logs_are_lines_or_objects(elastane, finished_run) -> None:
    finished_run()
    assert "worker.joined  worker 0" in elastane("events", "done", "--follow").stdout
    kinds = [json.loads(line)["kind"] for line in elastane("events", "done", "--json").stdout.splitlines()]
    assert kinds == ["run.started", "worker.joined", "run.finished"]
    assert elastane("logs", "done", "0", "-f").stdout == "hello from 0\n"
    assert elastane("logs", "done").stdout == "worker-0 | hello from 0\ncoordinator | listening\n"
    first = elastane("logs", "done", "coordinator", "--json").stdout
    assert json.loads(first) == {"process": "coordinator", "line": "listening"}
    assert elastane("logs", "done", "7").exit_code == 2


def test_list_shows_finished_runs_too(elastane, finished_run) -> None:
    assert "no runs in" in elastane("list").stdout
    finished_run()
    assert "finished" in elastane("list").stdout
    (row,) = json.loads(elastane("list", "--json").stdout)
    assert (row["name"], row["state"], row["step"], row["steps"]) == ("done", "finished", 4, 4)


def make_row(number: int, generation: int, state: str = "member") -> ProcessInfo:
    return ProcessInfo(
        role="worker", pid=100 + number, worker=number, generation=generation, virtual_ranks=2, state=state
    )


@pytest.fixture
def live_run(monkeypatch):
    """Make a live run that answers from a list and records the requests."""
    requests: list = []
    answers: list[Answer] = []

    def ask(run_dir: RunDir, message, timeout_s: float = 10) -> Answer:
        requests.append(message)
        return answers.pop(0)

    monkeypatch.setattr("elastane.run.connections.coordinator_request.ask_coordinator", ask)
    return requests, answers


def test_ps_shows_what_crosses_between_machines(elastane, finished_run, live_run) -> None:
    finished_run()
    rows = tuple(
        msgspec.structs.replace(make_row(worker, 1), node=node, sent_bytes=sent, received_bytes=sent // 2)
        for worker, node, sent in ((0, "", 1_000_000), (100, "b", 2_000_000), (101, "b", 4_000_000))
    )
    for processes in (rows, rows, rows[:1]):
        live_run[1].append(Answer(ok=True, generation=1, target=3, processes=processes))
    shown = elastane("ps", "done").stdout
    assert "first sends 1.0 MB, receives 500.0 kB per step" in shown
    assert "b sends 6.0 MB, receives 3.0 MB per step" in shown
    assert [row["sent_bytes"] for row in json.loads(elastane("ps", "done", "--json").stdout)] == [
        1_000_000,
        2_000_000,
        4_000_000,
    ]
    assert "per step" not in elastane("ps", "done").stdout


@pytest.mark.parametrize(("word", "node"), [("b", "b"), ("first", "")])
def test_a_machine_is_drained_by_its_name(elastane, finished_run, live_run, word, node) -> None:
    finished_run()
    requests, answers = live_run
    answers.append(Answer(ok=True, generation=1, processes=(make_row(0, 1),)))
    result = elastane("drain", "done", word)
    assert result.exit_code == 0
    assert requests == [AskDrainNode(node=node)]
    assert f"accepted: {word} leaves" in result.stdout


def test_draining_a_machine_waits_until_its_agent_has_gone(
    elastane, finished_run, live_run, monkeypatch
) -> None:
    monkeypatch.setattr("elastane.cli.runs.requests.LOOK_S", 0.0)
    finished_run()
    requests, answers = live_run
    agent = ProcessInfo(role="agent", pid=7, node="b")
    answers += [Answer(ok=True, generation=1, processes=(make_row(0, 1), agent))] * 2
    answers.append(Answer(ok=True, generation=2, processes=(make_row(0, 2),)))
    result = elastane("drain", "done", "b", "--wait", "--json")
    assert json.loads(result.stdout) == {"ok": True, "node": "b", "workers": [0], "generation": 2}
    assert requests == [AskDrainNode(node="b"), AskStatus(), AskStatus()]


def test_draining_the_last_machine_with_slots_says_that_it_waits_for_another(
    elastane, finished_run, live_run
) -> None:
    finished_run()
    _, answers = live_run
    answers += [Answer(ok=True, note="no machine with slots stays", processes=(make_row(0, 1),))] * 3
    assert "accepted, but no machine with slots stays" in elastane("drain", "done", "b").stdout
    assert "\nno machine with slots stays" in elastane("ps", "done").stdout
    assert (
        json.loads(elastane("drain", "done", "b", "--json").stdout)["note"] == "no machine with slots stays"
    )


def test_explain_says_what_a_live_run_waits_for(elastane, finished_run, live_run, monkeypatch) -> None:
    monkeypatch.setattr("elastane.cli.explain.is_live", lambda _: True)
    finished_run()
    _, answers = live_run
    answers += [Answer(ok=True, note="no machine with slots stays"), Answer(ok=True)]
    waiting, usual = elastane("explain", "done"), elastane("explain", "done")
    assert waiting.exit_code == usual.exit_code == 2
    assert "no machine with slots stays" in waiting.stderr
    assert "it was started with --start" in usual.stderr


def test_a_machine_that_is_not_there_is_refused(elastane, finished_run, live_run) -> None:
    finished_run()
    requests, answers = live_run
    answers.append(Answer(ok=False, why="no machine c in this run; taking part: first, b"))
    result = elastane("drain", "done", "c")
    assert result.exit_code == 2
    assert "taking part: first, b" in result.stderr
    assert elastane("drain", "done", "No Name").exit_code == 2
    assert len(requests) == 1


def test_resize_returns_when_the_run_has_accepted(elastane, finished_run, live_run) -> None:
    finished_run()
    requests, answers = live_run
    answers.append(Answer(ok=True, generation=1, target=2, processes=(make_row(0, 1),)))
    result = elastane("resize", "done", "2")
    assert result.exit_code == 0
    assert requests == [AskResize(workers=2)]
    assert "accepted: 2 workers (now 1)" in result.stdout


def test_resize_with_wait_returns_when_the_new_workers_train(
    elastane, finished_run, live_run, monkeypatch
) -> None:
    monkeypatch.setattr("elastane.cli.runs.requests.LOOK_S", 0.0)
    finished_run()
    requests, answers = live_run
    for generation, second in ((1, "starting"), (2, "ready"), (2, "member")):
        rows = (make_row(0, generation), make_row(1, generation, second))
        answers.append(Answer(ok=True, generation=generation, target=2, processes=rows))
    result = elastane("resize", "done", "2", "--wait", "--json")
    assert json.loads(result.stdout) == {"ok": True, "target": 2, "workers": [0, 1], "generation": 2}
    assert requests == [AskResize(workers=2), AskStatus(), AskStatus()]


def test_resize_with_wait_fails_if_the_run_changes_its_target(elastane, finished_run, live_run) -> None:
    finished_run()
    _, answers = live_run
    rows = (make_row(0, 1),)
    answers += [Answer(ok=True, generation=1, target=target, processes=rows) for target in (2, 1)]
    result = elastane("resize", "done", "2", "--wait")
    assert result.exit_code == 1
    assert "now aims at 1 worker," in result.stderr


def test_drain_with_wait_returns_when_the_worker_has_left(
    elastane, finished_run, live_run, monkeypatch
) -> None:
    monkeypatch.setattr("elastane.cli.runs.requests.LOOK_S", 0.0)
    finished_run()
    requests, answers = live_run
    both = (make_row(0, 1), make_row(1, 1, "draining"))
    answers += [Answer(ok=True, generation=1, target=1, processes=both)] * 2
    answers.append(
        Answer(ok=True, generation=2, target=1, processes=(make_row(0, 2), make_row(1, 1, "leaving")))
    )
    assert elastane("drain", "done", "1", "--wait").exit_code == 0
    assert requests == [AskDrain(worker=1), AskStatus(), AskStatus()]


def test_a_refusal_is_exit_code_2_and_prints_the_reason_of_the_run(elastane, finished_run, live_run) -> None:
    finished_run()
    _, answers = live_run
    answers.append(Answer(ok=False, why="9 workers are outside this run's limits: choose 1 to 4"))
    result = elastane("resize", "done", "9")
    assert result.exit_code == 2
    assert "outside this run's limits: choose 1 to 4" in result.stderr


def test_stop_sends_a_request(elastane, finished_run, live_run) -> None:
    finished_run()
    requests, answers = live_run
    answers.append(Answer(ok=True, step=3))
    assert elastane("stop", "done").exit_code == 0
    assert requests == [AskStop()]


def test_ps_has_one_row_per_process_with_all_keys(elastane, finished_run, live_run) -> None:
    finished_run()
    _, answers = live_run
    does = {"activity": {"wait": 28, "compute": 72}, "silent_s": 4.6, "saving": True, "further": (5123,)}
    rows = (
        ProcessInfo(role="agent", pid=7, state="running"),
        msgspec.structs.replace(make_row(0, 3), **does),
    )
    answers += [Answer(ok=True, state="training", step=9, steps=10, generation=3, processes=rows)] * 2
    shown = elastane("ps", "done").stdout
    assert "done: training, step 9 of 10, generation 3" in shown
    assert "compute 72 %, for 5 s, saves a checkpoint" in shown
    assert ", 5123" in shown
    agent, first = json.loads(elastane("ps", "done", "--json").stdout)
    keys = {"run", "role", "pid", "worker", "generation", "virtual_ranks", "blocks", "state", "node"}
    keys |= {"sent_bytes", "received_bytes", "activity", "silent_s", "compute_s", "saving", "further"}
    keys |= {"sites", "crossings"}
    assert set(agent) == set(first) == keys
    assert (first["worker"], first["virtual_ranks"], agent["worker"]) == (0, 2, None)


def test_ps_without_a_run_shows_live_runs_only(elastane, finished_run) -> None:
    finished_run()
    assert "no live runs" in elastane("ps").stdout
    assert json.loads(elastane("ps", "--json").stdout) == []


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("jobs", "--json", "--bad"), "No such option: --bad"),
        (("top", "--every", "often", "--json"), "--every"),
        (("pool", "set", "--json"), "Missing argument"),
        (("verbatim", "--json"), "No such command"),
        (("--bad", "--json"), "No such option: --bad"),
        (("submit", "t.py", "--lr", "1", "--json"), "--lr is not an option of elastane submit"),
    ],
)
def test_a_mistyped_command_is_json_on_request(elastane, words, what):
    answer = elastane(*words)
    assert answer.exit_code == 2
    (line,) = answer.stdout.splitlines()
    answer_object = json.loads(line)
    assert answer_object["exit_code"] == 2
    assert what in answer_object["error"]["what"]
    assert "--help" in answer_object["error"]["do"]
    assert answer.stderr


def test_json_after_two_dashes_belongs_to_the_script(elastane):
    answer = elastane("submit", "t.py", "--bad", "--", "--json")
    assert (answer.exit_code, answer.stdout) == (2, "")


@pytest.mark.parametrize("words", [("ps", "somewhere"), ("run", "train.py"), ("jobs",)])
def test_a_removed_working_directory_is_named(elastane, tmp_path, monkeypatch, words) -> None:
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()
    refused = elastane(*words)
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: the working directory cannot be found")


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", "f\\xfcnf-\\u2713"), ("latin-1", "f\u00fcnf-\\u2713")]
)
def test_every_path_can_be_shown_in_every_encoding(finished_run, home, tmp_path, encoding, shown) -> None:
    name = "f\u00fcnf-\u2713"
    finished_run()
    home.rename(tmp_path / name)

    def call(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "elastane", *words],
            capture_output=True,
            check=True,
            env=os.environ | {"PYTHONIOENCODING": encoding, "ELASTANE_HOME": str(tmp_path / name)},
        )
        return done.stdout.decode(encoding)

    assert shown in call("list")
    assert any(name in run["directory"] for run in json.loads(call("list", "--json")))


@pytest.mark.parametrize("words", [("list",), ("list", "--json"), ("events", "done"), ("--help",)])
def test_output_on_a_full_disk_is_one_error(finished_run, home, words) -> None:
    finished_run()
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "elastane", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: the output cannot be written: No space left on device\n")
    assert "Traceback" not in done.stderr


FULL_DISK_OF_A_FILE = """
import errno
from elastane.cli import main

def write():
    print("shown")
    raise OSError(errno.ENOSPC, "No space left on device", {path!r})

main.app = write
main.main()
"""


@pytest.mark.parametrize(("path", "named"), [("/big/model", "/big/model"), (None, "a file")])
def test_a_full_disk_of_a_file_is_not_one_of_the_output(path, named) -> None:
    program = [sys.executable, "-c", FULL_DISK_OF_A_FILE.format(path=path)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "shown\n" if path else "shown\n\n")
    assert done.stderr.startswith(f"error: {named} cannot be written: No space left on device\n")
    assert "not shown" not in done.stderr


def test_an_unknown_name_shows_few_of_many_runs(elastane, finished_run) -> None:
    for number in range(13):
        finished_run(f"run-{number:02}")
    refused = elastane("ps", "other").stderr
    assert "run-09 and 3 more" in refused
    assert "run-10" not in refused
