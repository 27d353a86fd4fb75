"""A finished model has the bytes that its run wrote, or the file with other bytes is named."""

import json

import msgspec
import pytest
import xxhash

from elastane.common.errors import BadInput
from elastane.run.attempts.verification import verify_run, verify_samples
from elastane.run.nouns.checkpoints import WrittenFile
from elastane.run.nouns.records import EventLine
from elastane.run.observability.model_files import check_model

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"
SET = (*SHARDS, INDEX, "optimizer.safetensors", "environment.json")
ENDS = ("run.finished", "run.stopped")


def end_run(run, names, kind="run.finished", **changes):
    """Write and record these files, and return the run with its last event."""
    files = {}
    for name in names:
        raw = name.encode() * 100
        (run.run_dir.root / name).write_bytes(raw)
        files[name] = WrittenFile(len(raw), xxhash.xxh3_128_hexdigest(raw))
    event = EventLine(time=1.0, kind=kind, who="coordinator", step=len(run.ledger), files=files)
    return msgspec.structs.replace(run, events=(msgspec.structs.replace(event, **changes),))


@pytest.fixture(params=ENDS)
def finished(request, make_run):
    return end_run(make_run(), SET, request.param)


def list_problems(run):
    return [(problem.kind, problem.text) for problem in check_model(run).problems]


def test_a_complete_set_of_files_is_proved(finished) -> None:
    verdict = verify_run(finished)
    assert (verdict.ok, verdict.files, verdict.remarks) == (True, len(SET), ())


@pytest.mark.parametrize("name", SET)
def test_a_flipped_bit_in_any_file_is_noticed(finished, name) -> None:
    path = finished.run_dir.root / name
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    verdict = verify_run(finished)
    assert not verdict.ok
    assert verdict.files == len(SET) - 1
    assert [
        (p.kind, p.text.startswith(f"{name} is not the file that the run wrote")) for p in verdict.problems
    ] == [("model", True)]
    assert verify_samples(finished).ok, "without reading the model"


@pytest.mark.parametrize("name", SET)
def test_a_missing_or_shortened_file_is_noticed(finished, name) -> None:
    path = finished.run_dir.root / name
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    assert list_problems(finished) == [("model", f"{name} has {size - 1:,} bytes; the run wrote {size:,}")]
    path.unlink()
    assert list_problems(finished) == [("model", f"{name} is missing; the run wrote {size:,} bytes")]


@pytest.mark.parametrize("name", ["model.safetensors", "model-00003-of-00003.safetensors"])
def test_an_additional_file_of_another_set_is_noticed(finished, name) -> None:
    (finished.run_dir.root / name).write_bytes(b"another run's")
    assert list_problems(finished) == [("model", f"{name} was not written by this run")]


def test_the_file_of_another_run_is_noticed(make_run) -> None:
    mine, other = end_run(make_run(name="a"), ["model.safetensors"]), make_run(name="b")
    other.run_dir.model_files.weights.write_bytes(b"x" * mine.run_dir.model_files.weights.stat().st_size)
    other.run_dir.model_files.weights.replace(mine.run_dir.model_files.weights)
    assert "is not the file that the run wrote" in list_problems(mine)[0][1]


def test_a_missing_record_of_the_optimizer_is_noticed(make_run) -> None:
    run = make_run()
    spec = msgspec.structs.replace(run.record.spec, save_optimizer=True)
    run = msgspec.structs.replace(run, record=msgspec.structs.replace(run.record, spec=spec))
    assert "--save-optimizer was given" in list_problems(end_run(run, ["model.safetensors"]))[0][1]


def test_a_recorded_path_outside_the_run_is_not_followed(make_run) -> None:
    run = end_run(make_run(), ["model.safetensors"])
    (event,) = run.events
    files = {**event.files, "../secret": WrittenFile(1, "00")}
    run = msgspec.structs.replace(run, events=(msgspec.structs.replace(event, files=files),))
    assert list_problems(run) == [("model", "the event names '../secret', which cannot be a file of the run")]


def test_a_run_from_before_checksums_has_a_remark(make_run) -> None:
    run = end_run(make_run(), ["environment.json"], files={})
    assert list_problems(run) == [("model", "the run finished, but model.safetensors is missing")]
    write_weights(run.run_dir.model_files.weights)
    verdict = verify_run(run)
    assert (verdict.ok, verdict.files) == (True, 0)
    assert "the version that made this run recorded no checksums" in verdict.remarks[0]
    run.run_dir.model_files.weights.rename(run.run_dir.root / SHARDS[0])
    run.run_dir.model_files.weight_index.write_text(
        json.dumps({"weight_map": dict(zip("ab", SHARDS, strict=True))})
    )
    assert SHARDS[1] in list_problems(run)[0][1]


def test_a_run_killed_before_its_checksums_were_recorded_has_a_remark(make_run) -> None:
    run = end_run(make_run(), [], "run.stopped", who="agent")
    assert check_model(run).problems == ()
    assert "killed before it recorded their checksums" in check_model(run).remarks[0]


@pytest.mark.parametrize("kind", ["run.failed", "run.resumed", "worker.died"])
def test_files_of_an_earlier_attempt_are_not_taken_for_the_result(make_run, kind) -> None:
    run = end_run(make_run(), ["model.safetensors"], "run.stopped")
    run = msgspec.structs.replace(run, events=(*run.events, EventLine(time=2.0, kind="run.resumed")))
    run = msgspec.structs.replace(run, events=(*run.events, EventLine(time=3.0, kind=kind)))
    run.run_dir.model_files.weights.write_bytes(b"being replaced")
    assert check_model(run).problems == ()
    assert "has not ended since they were written" in check_model(run).remarks[0]


def test_an_unreadable_file_is_bad_input(make_run) -> None:
    run = end_run(make_run(), ["model.safetensors"])
    run.run_dir.model_files.weights.unlink()
    run.run_dir.model_files.weights.mkdir()
    with pytest.raises(BadInput, match="cannot be read"):
        check_model(run)


def write_weights(path) -> None:
    header = json.dumps({"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
