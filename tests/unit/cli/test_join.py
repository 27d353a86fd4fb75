"""Refusals of ``elastane join``: each says what to do, and nothing takes part."""

import fcntl
import re

import msgspec
import pytest

from elastane.api.connection_limits import compute_most_workers
from elastane.api.spec import NO_LIMIT, TorchrunContract
from elastane.observability.run_files import read_record


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
    monkeypatch.setattr("elastane.api.connection_limits.read_descriptor_limit", lambda: 256)
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


@pytest.mark.parametrize("name", ["", "Upper", "a b", "../up", "-a", "x" * 64])
def test_a_name_that_cannot_name_a_node_is_refused(listening, elastane, name):
    assert "cannot name a node" in refuse(elastane, f"--name={name}")
    assert not list(listening.root.glob("lock-*"))


def test_a_name_is_used_once(listening, elastane):
    assert "a machine named b takes part already" in refuse_second(listening, elastane)
