"""The beginning of a run from the state of another one: reads, refusals, and the new directory."""

import msgspec
import pytest

from elastane.common.errors import BadInput, Damaged
from elastane.run.attempts.beginnings import (
    begin_from_checkpoints,
    copy_checkpoint,
    prepare_beginning,
    read_origin,
    read_stored_origin,
    split_step,
)
from elastane.run.attempts.run_directory import claim_run_directory
from elastane.run.checkpoints.catalog import Catalog
from elastane.run.checkpoints.storage.local import LocalStorage
from elastane.run.nouns.checkpoints import SAVED_BY, Manifest, PartFile, format_checkpoint_name
from elastane.run.nouns.spec import CheckpointPolicy, CheckpointRun, DataPosition, RunSpec
from elastane.run.observability.run_files import read_record
from elastane.run.protocol.sampling import find_position_after, find_step_samples


def publish(catalog, step, resumed=0, *, name="part-0.distcp", content=b"x" * 100, plain=None):
    checkpoint = format_checkpoint_name(step, resumed)
    written = catalog.write(checkpoint, "part-0.distcp", [content])
    part = PartFile(name="part-0.distcp", bytes=written.bytes, checksum=written.checksum)
    manifest = Manifest(
        name=checkpoint, step=step, resumed=resumed, created="", parts=(part,), plain=plain or {}
    )
    catalog.publish(manifest)
    return msgspec.structs.replace(manifest, parts=(msgspec.structs.replace(part, name=name),))


@pytest.fixture
def old(finished_run):
    """A finished run with checkpoints after steps 2 and 3, the latter of a second attempt."""
    run_dir = finished_run("old")
    record = read_record(run_dir)
    spec = msgspec.structs.replace(record.spec, checkpoints=CheckpointPolicy())
    run_dir.run.write_bytes(msgspec.json.encode(msgspec.structs.replace(record, spec=spec)))
    catalog = Catalog(LocalStorage(run_dir.checkpoints))
    publish(catalog, 2)
    publish(catalog, 3, 1, plain={"ending": "its script stopped it", "rest": "{}"})
    return run_dir


@pytest.fixture
def new(home):
    with claim_run_directory(
        RunSpec(name="new", script="t.py", checkpoints=CheckpointPolicy()), None
    ) as made:
        yield made


def read_contents(run_dir):
    return {path: path.read_bytes() for path in run_dir.root.rglob("*") if path.is_file()}


def test_the_newest_checkpoint_becomes_the_first_one_of_the_new_run(old, new):
    before, said = read_contents(old), []
    state = read_origin(old, None)
    record = prepare_beginning(new, state, said.append)
    assert record == read_record(new)
    assert (record.origin.run, record.origin.checkpoint, record.origin.step) == ("old", "step-00000003.r1", 3)
    assert record.origin.position == DataPosition(step=3, epoch=1, start=4)
    assert record.origin.parameters_sha256 == "ab" * 32
    assert (record.resumed.checkpoint, record.resumed.times) == ("step-00000003", 0)
    copied = Catalog(LocalStorage(new.checkpoints))
    assert copied.verify("step-00000003") == ()
    assert copied.load_manifest("step-00000003").plain == {"rest": "{}"}, (
        "the script of old has ended, not new"
    )
    assert read_contents(old) == before
    assert new.secret.read_bytes()


def test_checkpoints_at_a_url_are_enough(old, new):
    of_run = read_origin(old, None).origin
    saved_by = CheckpointRun(name="old", pinned=of_run.pinned, began_at=DataPosition(shards={1: 2}))
    plain = {SAVED_BY: msgspec.to_builtins(saved_by, str_keys=True)}
    publish(Catalog(LocalStorage(old.checkpoints)), 3, 1, plain=plain)
    state = read_stored_origin(old.checkpoints.as_uri(), 3)
    unknown = {"parameters_sha256": "", "optimizer_sha256": ""}
    assert state.origin == msgspec.structs.replace(of_run, directory=str(old.checkpoints), **unknown)
    assert prepare_beginning(new, state, lambda _: None).origin == state.origin


@pytest.mark.parametrize(
    ("plain", "error", "words"),
    [
        ({}, BadInput, "does not say how its run divides the data"),
        ({SAVED_BY: {"name": "old"}}, Damaged, "its run cannot be read"),
        ({SAVED_BY: "old"}, Damaged, "its run cannot be read"),
    ],
)
def test_checkpoints_of_an_unknown_run_are_refused(old, plain, error, words):
    publish(Catalog(LocalStorage(old.checkpoints)), 4, plain=plain)
    with pytest.raises(error, match=words):
        read_stored_origin(old.checkpoints.as_uri(), 4)


def write_spec(run_dir, **changes):
    record = read_record(run_dir)
    spec = msgspec.structs.replace(record.spec, **changes)
    record = msgspec.structs.replace(record, spec=spec, origin=None)
    run_dir.run.write_bytes(msgspec.json.encode(record))
    return record


@pytest.fixture
def stored(old):
    """The URL of checkpoints that name their run, and the pinned facts of that run."""
    pinned = msgspec.structs.replace(read_record(old).pinned, seed=7, threads=2)
    plain = {SAVED_BY: msgspec.to_builtins(CheckpointRun(name="old", pinned=pinned, virtual_ranks=4))}
    publish(Catalog(LocalStorage(old.checkpoints)), 3, 1, plain=plain)
    return old.checkpoints.as_uri()


def test_a_job_begins_from_checkpoints_also_after_an_attempt_that_died_before(stored, new):
    record = write_spec(new, begins_from=stored, threads=3)
    began = begin_from_checkpoints(new, record, lambda _: None)
    assert began == read_record(new)
    assert (began.spec.seed, began.spec.threads, began.spec.virtual_ranks) == (7, 3, 4)
    assert (began.origin.run, began.resumed.checkpoint) == ("old", "step-00000003")
    catalog = Catalog(LocalStorage(new.checkpoints))
    for left in ("COMPLETE", "part-0.distcp", "no file"):
        (new.checkpoints / "step-00000003" / left).unlink(missing_ok=True)
        again = begin_from_checkpoints(new, write_spec(new, begins_from=stored), lambda _: None)
        assert again == began
        assert catalog.verify("step-00000003") == ()


def test_a_job_takes_no_place_in_which_others_have_checkpoints(stored, new):
    publish(Catalog(LocalStorage(new.checkpoints)), 3, content=b"other")
    before = read_contents(new)
    record = write_spec(new, begins_from=f"{stored}@3")
    with pytest.raises(BadInput, match="already has checkpoints"):
        begin_from_checkpoints(new, record, lambda _: None)
    after = read_contents(new)
    assert after.pop(new.run)
    assert before.pop(new.run)
    assert after == before, "it may be said once more, and nothing is deleted"


@pytest.mark.parametrize("spell", [str, "{}/".format, "file://{}".format])
def test_a_job_does_not_begin_in_the_place_from_which_it_begins(stored, new, spell):
    # The only checkpoint there is a copy itself, such as that of a job that died before it saved one.
    begin_from_checkpoints(new, write_spec(new, begins_from=stored), lambda _: None)
    place, before = new.checkpoints, read_contents(new)
    policy = CheckpointPolicy(url=spell(place))
    with claim_run_directory(RunSpec(name="next", script="t.py", checkpoints=policy), None) as third:
        record = write_spec(third, begins_from=str(place))
        with pytest.raises(BadInput, match="already has checkpoints"):
            begin_from_checkpoints(third, record, lambda _: None)
    assert read_contents(new) == before


def test_a_step_without_a_checkpoint_is_refused_with_those_that_exist(old):
    with pytest.raises(BadInput, match="after step 1") as refused:
        read_origin(old, 1)
    assert "2, 3" in refused.value.means
    assert read_origin(old, 2).origin.step == 2


def test_a_run_without_a_checkpoint_is_refused(finished_run):
    with pytest.raises(BadInput, match="no complete checkpoint"):
        read_origin(finished_run("none"), None)


@pytest.mark.parametrize("name", ["../escaped", "/escaped", "..", "COMPLETE", "manifest.json"])
def test_no_name_in_a_manifest_leads_out_of_the_new_directory(old, tmp_path, name):
    catalog = Catalog(LocalStorage(old.checkpoints))
    hostile = publish(catalog, 9, name=name)
    with pytest.raises(Damaged):
        copy_checkpoint(catalog, hostile, Catalog(LocalStorage(tmp_path / "into")))
    assert not (tmp_path / "into").exists()


def test_a_link_in_the_old_run_is_not_followed(old, new, tmp_path):
    (tmp_path / "private").write_bytes(b"x" * 100)
    part = old.checkpoints / "step-00000003.r1" / "part-0.distcp"
    part.unlink()
    part.symlink_to(tmp_path / "private")
    with pytest.raises(Damaged, match=r"part-0\.distcp: is missing"):
        read_origin(old, None)
    with pytest.raises(BadInput, match="no complete checkpoint after step 3"):
        read_origin(old, 3)


def test_a_damaged_checkpoint_leaves_the_new_directory_free(old, new):
    with (old.checkpoints / "step-00000003.r1" / "part-0.distcp").open("r+b") as file:
        file.write(b"y")
    with pytest.raises(Damaged):
        prepare_beginning(new, read_origin(old, None), lambda _: None)
    assert not new.run.exists()
    assert Catalog(LocalStorage(new.checkpoints)).list_names() == []


def test_the_place_of_another_runs_checkpoints_is_refused(old, new):
    spec = msgspec.structs.replace(
        read_record(new).spec, checkpoints=CheckpointPolicy(url=str(old.checkpoints))
    )
    new.run.write_bytes(msgspec.json.encode(msgspec.structs.replace(read_record(new), spec=spec)))
    before = read_contents(old)
    with pytest.raises(BadInput, match="already has checkpoints"):
        prepare_beginning(new, read_origin(old, None), lambda _: None)
    assert read_contents(old) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--from", "old", "--resume", "old"), "--resume cannot be combined with --from"),
        (("--from", "file:///nowhere", "SCRIPT"), "/nowhere has no complete checkpoint"),
        (("--from", "old@7", "SCRIPT"), "no complete checkpoint after step 7"),
        (("--from", "old", "--contract", "torchrun", "SCRIPT"), "cannot be combined with --from"),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(elastane, old, home, script, words, said):
    before = sorted(home.rglob("*"))
    result = elastane("run", *(str(script) if word == "SCRIPT" else word for word in words))
    assert (result.exit_code, sorted(home.rglob("*"))) == (2, before)
    assert said in result.stderr


def test_a_step_is_split_from_the_name_of_a_run():
    assert split_step("demo@12") == ("demo", 12)
    assert split_step("runs/demo") == ("runs/demo", None)
    assert split_step("mail@host") == ("mail@host", None)


@pytest.mark.parametrize("step", range(1, 12))
def test_another_global_batch_continues_at_the_same_sample(step):
    """Every sample of each epoch is read once, for any step at which the batch changes."""
    length, start = 10, find_position_after(step, 10, 4, DataPosition())
    seen = [find_step_samples(number, length, 4) for number in range(1, step + 1)]
    seen += [find_step_samples(number, length, 3, start) for number in range(step + 1, step + 9)]
    positions = [samples.epoch * length + at for samples in seen for at in range(samples.start, samples.stop)]
    assert positions == [*range(len(positions))]
