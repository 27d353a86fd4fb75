"""Output, exit codes and refusals of `elastane checkpoint`; the files here hold no tensors."""

import fcntl
import json
from pathlib import Path

import msgspec
import pytest

from elastane.run.checkpoints.catalog import Catalog
from elastane.run.checkpoints.storage.local import LocalStorage
from elastane.run.nouns.checkpoints import Manifest, PartFile, format_checkpoint_name
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import Resumed
from elastane.run.observability.run_files import read_record


@pytest.fixture
def catalog(finished_run):
    run_dir = finished_run()
    found = Catalog(LocalStorage(run_dir.checkpoints))
    for step, loss in ((100, 2.0), (200, 1.0), (300, 3.0)):
        name = format_checkpoint_name(step)
        written = found.write(name, "part-0.distcp", [b"x" * step])
        part = PartFile(name="part-0.distcp", bytes=written.bytes, checksum=written.checksum)
        found.publish(
            Manifest(
                name=name,
                step=step,
                created="2026-01-01T00:00:00Z",
                parts=(part,),
                metrics={"eval_loss": loss},
                plain={"scheduler": {"last_epoch": step}},
            )
        )
    return found


def damage(catalog, step):
    path = f"{catalog.storage.url}/{format_checkpoint_name(step)}/part-0.distcp"
    with Path(path).open("r+b") as file:
        file.write(b"y")


@pytest.mark.parametrize("command", ["list", "show", "verify", "prune"])
def test_every_command_has_help_and_takes_json(elastane, command):
    page = elastane("checkpoint", command, "--help")
    assert page.exit_code == 0
    assert "--json" in page.stdout


def test_list_takes_the_name_of_a_run_a_directory_or_a_url(elastane, catalog):
    for run in ("done", str(LocalStorage(catalog.storage.url).url), f"file://{catalog.storage.url}"):
        rows = json.loads(elastane("checkpoint", "list", run, "--json").stdout)
        assert [row["step"] for row in rows] == [100, 200, 300]
        assert set(rows[0]) >= {"name", "state", "step", "resumed", "bytes", "created", "metrics", "damages"}
    shown = elastane("checkpoint", "list", "done").stdout
    assert "eval_loss 1" in shown
    assert shown.count("complete") == 3


def test_show_takes_the_newest_checkpoint_or_the_named_one(elastane, catalog):
    assert "step 300" in elastane("checkpoint", "show", "done").stdout
    for wanted in ("200", format_checkpoint_name(200)):
        shown = elastane("checkpoint", "show", "done", wanted).stdout
        assert "step 200" in shown
        assert '"last_epoch":200' in shown
    manifest = json.loads(elastane("checkpoint", "show", "done", "--json").stdout)
    assert manifest["parts"][0]["bytes"] == 300


def test_verify_accepts_a_good_checkpoint_and_names_a_damaged_file(elastane, catalog):
    good = elastane("checkpoint", "verify", "done")
    assert good.exit_code == 0
    assert "step-00000300 is valid: 300 B verified" in good.stdout
    damage(catalog, 300)
    bad = elastane("checkpoint", "verify", "done")
    assert bad.exit_code == 1
    assert "step-00000300/part-0.distcp: its checksum is" in bad.stdout
    found = json.loads(elastane("checkpoint", "verify", "done", "--json").stdout)
    assert found["ok"] is False
    assert [d["file"] for d in found["damages"]] == ["part-0.distcp"]


def test_an_unfinished_checkpoint_is_not_good(elastane, catalog):
    catalog.storage.delete(f"{format_checkpoint_name(300)}/COMPLETE")
    assert "unfinished" in elastane("checkpoint", "list", "done").stdout
    result = elastane("checkpoint", "verify", "done", "300")
    assert result.exit_code == 1
    assert "never finished" in result.stdout
    assert elastane("checkpoint", "show", "done", "300").exit_code == 2
    assert "step-00000200 is valid" in elastane("checkpoint", "verify", "done").stdout


def test_prune_names_what_it_deletes_and_why_and_a_dry_run_deletes_nothing(elastane, catalog):
    rules = ("--last", "1", "--best", "eval_loss:min")
    said = elastane("checkpoint", "prune", "done", *rules, "--dry-run").stdout
    assert said == "would delete step-00000100: not among the last 1, nor the best by eval_loss\n"
    assert len(catalog.list_names()) == 3
    gone = json.loads(elastane("checkpoint", "prune", "done", *rules, "--json").stdout)
    assert [d["name"] for d in gone["deleted"]] == [format_checkpoint_name(100)]
    assert catalog.list_names() == [format_checkpoint_name(200), format_checkpoint_name(300)]
    assert elastane("checkpoint", "prune", "done", *rules).stdout == "nothing to delete\n"


def test_prune_keeps_the_checkpoint_that_a_live_run_was_resumed_from(elastane, catalog, home):
    run_dir = RunDir(home / "runs" / "done")
    record = read_record(run_dir)
    resumed = Resumed(checkpoint=format_checkpoint_name(100), step=100, times=1, first_worker=1, first_term=2)
    run_dir.run.write_bytes(msgspec.json.encode(msgspec.structs.replace(record, resumed=resumed)))
    with run_dir.lock.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        elastane("checkpoint", "prune", "done", "--last", "1")
        assert catalog.list_names() == [format_checkpoint_name(100), format_checkpoint_name(300)]
    elastane("checkpoint", "prune", "done", "--last", "1")
    assert catalog.list_names() == [format_checkpoint_name(300)]


def test_prune_without_rules_deletes_no_good_checkpoint(elastane, catalog):
    assert elastane("checkpoint", "prune", "done").stdout == "nothing to delete\n"
    assert len(catalog.list_names()) == 3


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("list", "nobody"), 3),
        (("show", "done", "999"), 2),
        (("prune", "done", "--best", "eval_loss"), 2),
        (("prune", "done", "--last", "0"), 2),
        (("list", "nothing://there"), 2),
    ],
)
def test_invalid_arguments_are_refused(elastane, catalog, words, code):
    assert elastane("checkpoint", *words).exit_code == code
    assert len(catalog.list_names()) == 3


def test_a_run_without_checkpoints_has_none_to_list_or_show(elastane, finished_run):
    finished_run()
    assert "no checkpoints in" in elastane("checkpoint", "list", "done").stdout
    assert elastane("checkpoint", "show", "done").exit_code == 2
