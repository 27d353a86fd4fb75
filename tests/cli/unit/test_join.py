"""Refusals of ``elastane join``: each says what to do, and nothing takes part."""

import fcntl
import hashlib
import platform
import re
import time

import msgspec
import pytest
from typer.testing import CliRunner

from elastane.cli.main import app
from elastane.run.attempts.software import list_own_versions
from elastane.run.machines.joining import shared_run
from elastane.run.machines.visits.visits import explain_unshared
from elastane.run.nouns.connection_limits import compute_most_workers
from elastane.run.nouns.control import Answer
from elastane.run.nouns.hosts import MOST_SLOTS
from elastane.run.nouns.membership import NodeAddress
from elastane.run.nouns.spec import NO_LIMIT, CheckpointPolicy, RunSoftware, TorchrunContract
from elastane.run.observability.run_files import read_record

from .conftest import PINNED


@pytest.fixture
def listening(finished_run, script):
    """Return a run that takes other machines; its coordinator is not real."""
    run_dir = finished_run("shared")
    change(run_dir, listen="10.0.0.5", script=str(script))
    run_dir.endpoint.write_text('{"host": "10.0.0.5", "port": 1}')
    return run_dir


def change(run_dir, **fields):
    record = read_record(run_dir)
    record = msgspec.structs.replace(record, spec=msgspec.structs.replace(record.spec, **fields))
    run_dir.run.write_bytes(msgspec.json.encode(record))


def refuse(elastane, *words, code=2):
    answer = elastane("join", "shared", *words)
    assert answer.exit_code == code
    assert "do:" in answer.output
    return re.sub(r"\s+", " ", answer.output)


def refuse_second(listening, elastane):
    """Let a machine join under a name that is in use, which is checked last."""
    with (listening.root / "lock-b").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return refuse(elastane, "--name", "b")


def test_a_run_without_listen_takes_no_machine(listening, elastane):
    change(listening, listen="")
    assert "takes no other machines" in refuse(elastane, "--name", "b")


def test_too_few_descriptors_are_named_before_a_machine_joins(listening, elastane, monkeypatch):
    monkeypatch.setattr("elastane.run.nouns.connection_limits.read_descriptor_limit", lambda: 256)
    change(listening, max_workers=compute_most_workers(256) + 1)
    assert "ulimit -n" in refuse(elastane, "--name", "b")
    change(listening, max_workers=compute_most_workers(256), script="/nowhere/train.py")
    assert "ulimit" not in refuse(elastane, "--name", "b")


def test_an_unmodified_script_takes_no_machine(listening, elastane):
    change(listening, contract=TorchrunContract())
    assert "an unmodified script trains on one machine" in refuse(elastane, "--name", "b")


def test_a_run_without_limit_takes_machines_whatever_the_descriptors(listening, elastane):
    change(listening, max_workers=NO_LIMIT, start=2)
    assert "takes part already" in refuse_second(listening, elastane)


def test_a_run_without_coordinator_is_not_running(listening, elastane):
    listening.endpoint.unlink()
    assert "is not running" in refuse(elastane, "--name", "b", code=3)


def test_a_missing_script_is_named(listening, elastane):
    change(listening, script="/nowhere/train.py")
    assert "/nowhere/train.py" in refuse(elastane, "--name", "b")


@pytest.mark.parametrize("name", ["", "Upper", "a b", "../up", "-a", "x" * 64, "first", "7", "007"])
def test_a_name_that_cannot_name_a_node_is_refused(listening, elastane, name):
    assert "cannot name a node" in refuse(elastane, f"--name={name}")
    assert not list(listening.root.glob("lock-*"))


@pytest.mark.parametrize(
    ("host", "node"),
    [("GPU_01.example", "gpu-01.example"), ("7", "host-7"), ("first", "host-first"), ("first-2", "first-2")],
)
def test_a_machine_has_a_name_that_works_whatever_its_host_name(listening, elastane, monkeypatch, host, node):
    monkeypatch.setattr("elastane.cli.runs.join.socket.gethostname", lambda: host)
    with (listening.root / f"lock-{node}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = refuse(elastane, "--listen", "127.0.0.1", "--slots", "1")
    assert f"a machine named {node} takes part already" in said


def test_more_slots_than_an_agent_watches_are_refused(listening, elastane):
    assert f"--slots {MOST_SLOTS + 1} is more than {MOST_SLOTS}" in refuse(
        elastane, "--name", "b", "--slots", str(MOST_SLOTS + 1)
    )


def test_a_name_is_used_once(listening, elastane):
    assert "a machine named b takes part already" in refuse_second(listening, elastane)


# -- words that are not those of a run --------------------------------------------------------------------


def refuse_word(word, stdin=None, code=2):
    answer = CliRunner().invoke(app, ["join", word], input=stdin)
    assert answer.exit_code == code
    return re.sub(r"\s+", " ", answer.output)


def test_a_directory_that_is_not_mounted_is_named_as_such(home, tmp_path):
    words = refuse_word(str(tmp_path / "shared" / "demo"), code=3)
    assert f"{tmp_path}/shared/demo does not exist on this machine" in words
    assert "is perhaps not mounted here" in words
    assert "mount it at the same path as on the other machines" in words


def test_a_directory_without_a_run_is_named_as_such(home, tmp_path):
    words = refuse_word(str(tmp_path), code=3)
    assert f"{tmp_path} is not the directory of a run: it has no run.json" in words
    assert "the file system of the run is not mounted there" in words


@pytest.mark.parametrize("stdin", ["", "\n", "  \n"])
def test_an_empty_standard_input_has_no_ticket(home, stdin):
    assert "there is no ticket on standard input" in refuse_word("-", stdin)


@pytest.mark.parametrize("word", ["elastane1-", "elastane1-lKgxYTViNWIxYsQ"])
def test_a_ticket_that_was_cut_is_recognised(home, word):
    for words in (refuse_word(word, code=3), refuse_word("-", f"{word}\n", code=3)):
        assert f"there is no run '{word}', and as a ticket it is incomplete" in words
        assert "copy the whole word" in words


def test_of_a_pasted_line_only_the_ticket_is_asked_for(home):
    line = "elastane join elastane1-lKgxYTViNWIxYsQQitaspqPlBteqFtzj8W01VcQg97J"
    for words in (refuse_word(line), refuse_word("-", f"{line}\n")):
        assert "is more than a ticket" in words
        assert "pass only that word" in words


# -- machines that do not fit, before any worker has started -------------------------------------------------


@pytest.fixture
def answering(listening, script, monkeypatch):
    """Return a run of which no worker has started, and which answers. This machine shares its directories."""
    record = read_record(listening)
    software = RunSoftware(
        versions=list_own_versions(),
        architecture=platform.machine(),
        script_digest=hashlib.sha256(script.read_bytes()).hexdigest(),
    )
    listening.run.write_bytes(
        msgspec.json.encode(msgspec.structs.replace(record, pinned=None, software=software))
    )
    listening.secret.write_text("5" * 64)
    (listening.root / "claims").mkdir()
    answer = Answer(ok=True, time_s=time.time(), nodes=(NodeAddress("", "10.0.0.5", 1),))
    monkeypatch.setattr("elastane.run.machines.joining.shared_run.ask_coordinator", lambda *_: answer)
    monkeypatch.setattr("elastane.run.machines.joining.shared_run.check_shared_places", lambda *_: None)
    monkeypatch.setattr(shared_run, "take_part", lambda *_: pytest.fail("it takes part"))
    return listening


def join_here(elastane):
    return refuse(elastane, "--name", "b", "--listen", "127.0.0.1", "--slots", "1")


def change_software(run_dir, **fields):
    record = read_record(run_dir)
    software = msgspec.structs.replace(record.software, **fields)
    run_dir.run.write_bytes(msgspec.json.encode(msgspec.structs.replace(record, software=software)))


def takes_part(elastane, monkeypatch):
    class TookPart(Exception):
        pass

    def take_part(*_):
        raise TookPart

    monkeypatch.setattr(shared_run, "take_part", take_part)
    answer = elastane("join", "shared", "--name", "b", "--listen", "127.0.0.1", "--slots", "1")
    return isinstance(answer.exception, TookPart)


def test_a_machine_that_fits_takes_part(answering, elastane, monkeypatch):
    assert takes_part(elastane, monkeypatch)
    assert list((answering.root / "claims").iterdir()) == []


def test_a_clock_that_is_off_is_refused(answering, elastane, monkeypatch):
    late = Answer(ok=True, time_s=time.time() - 7200, nodes=(NodeAddress("", "10.0.0.5", 1),))
    monkeypatch.setattr("elastane.run.machines.joining.shared_run.ask_coordinator", lambda *_: late)
    assert "the clock of this machine is 2 h ahead of" in join_here(elastane)


@pytest.mark.parametrize("name", ["elastane", "torch", "python"])
def test_another_version_is_refused(answering, elastane, name):
    change_software(answering, versions=list_own_versions() | {name: "0.0.1"})
    assert f"{name} is {list_own_versions()[name]}, the run's is 0.0.1" in join_here(elastane)


def test_another_architecture_is_refused(answering, elastane):
    change_software(answering, architecture="s390x")
    assert f"the CPU of this machine is {platform.machine()}, those of the run are s390x" in join_here(
        elastane
    )


def test_another_script_is_refused(answering, elastane):
    change_software(answering, script_digest="ab" * 32)
    assert "is another script than the run's" in join_here(elastane)


def test_changed_shipped_code_is_refused(answering, elastane):
    change(answering, code="cd" * 32)
    assert "code" in join_here(elastane)


def test_too_little_memory_is_refused_once_the_model_is_known(answering, elastane, listening):
    record = read_record(listening)
    pinned = msgspec.structs.replace(PINNED, parameters=1 << 50, script_digest=record.software.script_digest)
    listening.run.write_bytes(msgspec.json.encode(msgspec.structs.replace(record, pinned=pinned)))
    assert "of free memory, and 1 workers need at least" in join_here(elastane)


def test_a_checkpoint_storage_that_cannot_be_reached_is_refused(answering, elastane, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    change(answering, checkpoints=CheckpointPolicy(url="s3://bucket/checkpoints"))
    assert "does not reach the checkpoints of the run: cannot list s3://bucket" in join_here(elastane)


def test_a_claim_list_at_an_unsupported_url_is_refused(answering, elastane):
    change(answering, claims="gs://bucket/claims")
    assert "a claim list cannot be kept at gs:// URLs" in join_here(elastane)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_a_claim_list_without_a_right_to_write_it_is_refused(answering, elastane, claims_server):
    change(answering, claims="s3://claims/runs")
    claims_server.denied = "/runs/"
    words = join_here(elastane)
    assert "cannot write the claim list s3://claims/runs/shared-" in words
    assert "permission denied" in words
    assert "let these credentials list, read and write objects there" in words


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_a_claim_list_that_is_away_refuses_no_machine(answering, elastane, claims_server, monkeypatch):
    monkeypatch.setattr("elastane.run.machines.joining.join_checks.CLAIMS_S", 0.5)
    change(answering, claims="s3://claims/runs")
    claims_server.away = True
    assert takes_part(elastane, monkeypatch)


def test_a_directory_that_is_not_shared_is_refused_without_a_ticket(answering, elastane, monkeypatch):
    def refuse_here(run_dir, nodes, endpoint, secret):
        assert (nodes[0].host, endpoint.host, secret) == ("10.0.0.5", "10.0.0.5", "5" * 64)
        raise explain_unshared("run", run_dir.root)

    monkeypatch.setattr("elastane.run.machines.joining.shared_run.check_shared_places", refuse_here)
    assert "this machine does not share the directory of the run" in join_here(elastane)
