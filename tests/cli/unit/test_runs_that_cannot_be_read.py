"""An unreadable run does not hide the other runs."""

import json

import msgspec
import pytest

from elastane.cli.runs.listing import list_
from elastane.cli.runs.ps import ps
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunRecord, RunSpec
from tests.hostile import STAND_INS, replace_with_stand_in


@pytest.fixture
def bad(tmp_path, monkeypatch) -> RunDir:
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path))
    for name in ("bad", "good"):
        run_dir = RunDir(tmp_path / "runs" / name)
        run_dir.root.mkdir(parents=True)
        record = RunRecord(spec=RunSpec(name=name, script="/train.py"), created="")
        run_dir.run.write_bytes(msgspec.json.encode(record))
    return RunDir(tmp_path / "runs" / "bad")


@pytest.mark.parametrize("stand_in", sorted(set(STAND_INS) - {"nothing", "a link to nothing"}))
@pytest.mark.parametrize("file", ["run", "ledger", "events", "lock"])
def test_an_unreadable_run_does_not_hide_the_others(bad, capsys, file, stand_in) -> None:
    replace_with_stand_in(getattr(bad, file), stand_in)
    list_(as_json=True)
    states = {row["name"]: row["state"] for row in json.loads(capsys.readouterr().out)}
    assert states["good"] != "unreadable"
    # An incomplete last line is skipped, because the run may still be writing it.
    if file in {"ledger", "events"} and stand_in in {"a pipe", "a directory", "an endless device"}:
        assert states["bad"] == "unreadable"
    ps(as_json=True)
    assert json.loads(capsys.readouterr().out) == []
