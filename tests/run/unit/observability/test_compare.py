"""Two runs are equal bit for bit, or their first difference is named."""

import json
import struct
from pathlib import Path

import msgspec
import pytest

from elastane.common.errors import BadInput
from elastane.run.nouns.records import SCRIPT, EventLine
from elastane.run.nouns.spec import PastDivision
from elastane.run.observability.compare import Comparison, compare_runs
from elastane.run.observability.tensors import TensorFile, compare_tensors


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> Path:
    header, body = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps({"__metadata__": {"format": "pt"}} | header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def pack_floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


@pytest.fixture
def pair(make_run):
    def build(**changes) -> Comparison:
        first, second = make_run(name="a"), make_run(name="b", **changes)
        for run in (first, second):
            write_safetensors(run.run_dir.model_files.weights, {"w": ("F32", [2], pack_floats(1.0, 2.0))})
        return compare_runs(first, second)

    return build


def change_step(step: int, **changes):
    return lambda line: msgspec.structs.replace(line, **changes) if line.step == step else line


def test_equal_runs_are_equal_with_different_workers(pair) -> None:
    found = pair(change=change_step(5, workers={3: ((0, 4),)}, generation=9, time=0.0, seconds={}))
    assert found.equal
    assert (found.same_steps, found.digests, found.tensors_compared) == (6, 3, 1)


def test_the_first_differing_loss_is_named(pair) -> None:
    found = pair(
        change=lambda line: msgspec.structs.replace(line, loss_hex="0x1p0") if line.step > 2 else line
    )
    assert not found.equal
    assert [(d.what, d.step) for d in found.ledger] == [("loss", 3)]
    assert found.same_steps == 2


def test_the_first_differing_block_is_named(pair, make_run) -> None:
    digest = make_run().ledger[3].digest
    changed = msgspec.structs.replace(digest, optimizer="0" * 64, optimizer_blocks=("b1", "XX", "YY"))
    found = pair(change=change_step(4, digest=changed))
    assert [(d.what, d.step, d.block) for d in found.ledger] == [("optimizer", 4, 1)]


def test_a_loss_that_differs_in_one_of_its_forms_is_named(pair) -> None:
    found = pair(change=change_step(3, loss=1.0))
    assert not found.equal
    assert [(d.what, d.step) for d in found.ledger] == [("loss", 3)]
    assert [(problem.kind, problem.step) for problem in found.problems] == [("loss", 3)]


def test_a_digest_that_only_one_run_has_is_a_difference(pair) -> None:
    found = pair(change=change_step(4, digest=None))
    assert not found.equal
    assert [(d.what, d.step, d.second) for d in found.ledger] == [("digest", 4, "none")]


def test_a_due_digest_that_both_runs_lack_is_a_problem_of_both(make_run) -> None:
    first, second = (
        set_digest_every(make_run(name=name, change=change_step(4, digest=None)), 2) for name in "ab"
    )
    found = compare_runs(first, second)
    assert not found.equal
    assert [(problem.run, problem.step) for problem in found.problems] == [
        (str(run.run_dir.root), 4) for run in (first, second)
    ]


@pytest.mark.parametrize(("parameters", "equal"), [("e" * 64, True), ("0" * 64, False)])
def test_the_last_digests_of_runs_that_their_scripts_ended_are_compared(make_run, parameters, equal) -> None:
    detail = {"parameters_sha256": parameters, "optimizer_sha256": "f" * 64}
    digest = EventLine(time=1.0, kind="digest", step=6, detail=detail)
    ended = EventLine(time=2.0, kind="run.finished", who=SCRIPT, step=6)
    first = make_run(name="a", change=change_step(6, digest=None), events=(digest, ended))
    second = make_run(name="b")
    for run in (first, second):
        write_safetensors(run.run_dir.model_files.weights, {"w": ("F32", [1], pack_floats(1.0))})
    found = compare_runs(first, second)
    assert (found.equal, found.digests) == (equal, 3)
    assert [(d.what, d.step) for d in found.ledger] == ([] if equal else [("parameters", 6)])


def set_digest_every(run, every):
    spec = msgspec.structs.replace(run.record.spec, digest_every=every)
    return msgspec.structs.replace(run, record=msgspec.structs.replace(run.record, spec=spec))


def remove_digests(*steps):
    return lambda line: msgspec.structs.replace(line, digest=None) if line.step in steps else line


@pytest.mark.parametrize(("lost", "named"), [((), []), ((6,), [6]), ((3,), [])])
def test_runs_may_have_digests_at_different_steps(make_run, lost, named) -> None:
    """The first has one every two steps, the second every three: they meet at step 6."""
    digest = make_run().ledger[1].digest
    first = set_digest_every(make_run(name="a"), 2)
    at_three = {3: digest, 6: digest}
    second = set_digest_every(
        make_run(name="b", change=lambda line: msgspec.structs.replace(line, digest=at_three.get(line.step))),
        3,
    )
    assert compare_runs(first, second).equal
    second = msgspec.structs.replace(second, ledger=tuple(map(remove_digests(*lost), second.ledger)))
    found = compare_runs(first, second)
    assert [d.step for d in found.ledger if d.what == "digest"] == named
    # Only the second run has a digest at step 3; if it is missing, that is a problem of this run.
    assert [problem.step for problem in found.problems] == [step for step in lost if step not in named]


def test_a_digest_at_the_end_of_an_attempt_is_due_in_that_run_only(make_run) -> None:
    """The second run was stopped after step 4 and resumed; it has a digest there that the first has not."""
    first = set_digest_every(make_run(name="a", change=change_step(4, digest=None)), 6)
    first = msgspec.structs.replace(first, ledger=tuple(map(remove_digests(2), first.ledger)))
    second = set_digest_every(make_run(name="b", change=remove_digests(2)), 6)
    assert [d.step for d in compare_runs(first, second).ledger] == [4]
    stopped = (
        EventLine(time=1.0, kind="run.stopped", step=4),
        EventLine(time=2.0, kind="run.resumed", step=4),
    )
    second = msgspec.structs.replace(second, events=(*stopped, *second.events))
    assert compare_runs(first, second).equal


def test_a_gradient_norm_or_a_skipped_step_that_differs_is_named(make_run) -> None:
    def add_norm(line):
        return msgspec.structs.replace(line, grad_norm=float(line.step))

    first = make_run(name="a", change=add_norm)
    for what, changes in (
        ("norm", {"grad_norm": 2.0}),
        ("norm", {"grad_norm": None}),
        ("skipped", {"skipped": True}),
    ):
        second = make_run(
            name="b", change=lambda line, changes=changes: change_step(5, **changes)(add_norm(line))
        )
        assert what in {d.what for d in compare_runs(first, second).ledger if d.step == 5}
    assert compare_runs(first, make_run(name="c")).equal, "only a script that clips measures norms"


def test_differing_samples_are_named(pair, make_run) -> None:
    samples = msgspec.structs.replace(make_run().ledger[1].samples, checksum="0" * 16)
    assert [(d.what, d.step) for d in pair(change=change_step(2, samples=samples)).ledger] == [("samples", 2)]


@pytest.mark.parametrize("change", [{"threads": 2}, {"seed": 8}, {"convergence": "fast"}])
def test_runs_with_different_options_that_decide_the_bits_cannot_be_compared(pair, pinned, change) -> None:
    found = pair(pinned=msgspec.structs.replace(pinned, **change))
    assert not found.comparable
    assert not found.equal
    assert [d.name for d in found.pinned] == list(change)


@pytest.mark.parametrize(
    "change",
    [{"copies": 2}, {"script_digest": "00"}, {"versions": {"torch": "2.13.0", "device": "cpu"}}],
)
def test_an_option_that_does_not_decide_the_bits_is_only_named(pair, pinned, change) -> None:
    found = pair(pinned=msgspec.structs.replace(pinned, **change))
    assert found.equal
    assert found.pinned


def test_runs_that_divide_the_model_differently_are_compared_without_digests(pair, pinned) -> None:
    def change(line):
        digest = line.digest and msgspec.structs.replace(line.digest, parameters="of other parts")
        return msgspec.structs.replace(line, digest=digest)

    divided = msgspec.structs.replace(pinned, division="0a")
    found = pair(pinned=divided, change=change)
    assert (found.equal, found.digests, found.tensors_compared) == (True, 0, 1)
    assert "digests of 6 steps were not compared" in found.remarks[0]
    assert not pair(pinned=msgspec.structs.replace(divided, sharing=2), change=change).comparable


def test_only_steps_with_the_same_division_are_compared_by_digests(pair, pinned) -> None:
    """The second run had other processes up to step 4."""

    def change(line):
        digest = line.digest and msgspec.structs.replace(line.digest, parameters="of other parts")
        return msgspec.structs.replace(line, digest=digest) if line.step <= 4 else line

    found = pair(change=change, divisions=(PastDivision(4, "halves", pinned.blocks),))
    assert (found.equal, found.digests) == (True, 1)
    assert "digests of 4 steps were not compared" in found.remarks[0]
    assert not pair(change=change).equal


def test_runs_that_divide_the_model_differently_are_not_equal_without_models(make_run, pinned) -> None:
    first, second = (
        make_run(name="a"),
        make_run(name="b", pinned=msgspec.structs.replace(pinned, division="0a")),
    )
    assert not compare_runs(first, second).equal


def test_another_version_of_torch_decides_the_bits(pair, pinned) -> None:
    versions = pinned.versions | {"torch": "2.12.0"}
    assert not pair(pinned=msgspec.structs.replace(pinned, versions=versions)).comparable


def test_a_comparison_says_which_run_ended_first(pair) -> None:
    found = pair(steps=4)
    assert not found.equal
    assert found.remarks == ("the second run ended first, after step 4; the first continued to step 6",)
    assert found.same_steps == 4


def test_a_run_without_its_model_is_not_the_same(make_run) -> None:
    first, second = make_run(name="a"), make_run(name="b")
    assert compare_runs(first, second).equal
    write_safetensors(first.run_dir.model_files.weights, {"w": ("F32", [1], pack_floats(1.0))})
    found = compare_runs(first, second)
    assert not found.equal
    assert "holds no finished model" in found.remarks[0]


def test_shards_are_compared_with_a_whole_model(pair, make_run) -> None:
    assert pair().equal
    cut, whole = make_run(name="cut"), make_run(name="a")
    two = {"v": ("F32", [1], pack_floats(3.0)), "w": ("F32", [2], pack_floats(1.0, 2.0))}
    write_safetensors(whole.run_dir.model_files.weights, two)
    files = {"w": "model-00001-of-00002.safetensors", "v": "model-00002-of-00002.safetensors"}
    for name, file in files.items():
        write_safetensors(cut.run_dir.root / file, {name: two[name]})
    cut.run_dir.model_files.weight_index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
    found = compare_runs(cut, whole)
    assert (found.equal, found.tensors_compared) == (True, 2)
    write_safetensors(cut.run_dir.root / files["v"], {"v": ("F32", [1], pack_floats(-3.0))})
    assert [difference.name for difference in compare_runs(cut, whole).tensors] == ["v"]
    (cut.run_dir.root / files["v"]).unlink()
    with pytest.raises(BadInput, match="00002-of-00002"):
        compare_runs(cut, whole)


def test_tensors_are_compared_by_their_bits(tmp_path) -> None:
    a = TensorFile(
        write_safetensors(
            tmp_path / "a",
            {
                "same": ("F32", [2], pack_floats(float("nan"), -0.0)),
                "values": ("F32", [3], pack_floats(1.0, 2.0, 3.0)),
                "zero": ("F32", [1], pack_floats(0.0)),
                "half": ("BF16", [2], bytes.fromhex("803f0040")),  # 1, 2
                "shape": ("F32", [1, 2], pack_floats(1.0, 2.0)),
                "gone": ("I64", [1], bytes(8)),
            },
        )
    )
    b = TensorFile(
        write_safetensors(
            tmp_path / "b",
            {
                "same": ("F32", [2], pack_floats(float("nan"), -0.0)),
                "values": ("F32", [3], pack_floats(1.0, 2.5, 3.25)),
                "zero": ("F32", [1], pack_floats(-0.0)),
                "half": ("BF16", [2], bytes.fromhex("803f8040")),  # 1, 4
                "shape": ("F32", [2, 1], pack_floats(1.0, 2.0)),
            },
        )
    )
    found = {d.name: (d.why, d.elements, d.max_abs) for d in compare_tensors(a, b)}
    assert found == {
        "gone": ("only in the first", None, None),
        "half": ("values", 1, 2.0),
        "shape": ("shape [1, 2] against [2, 1]", None, None),
        "values": ("values", 2, 0.5),
        "zero": ("values", 1, 0.0),
    }


@pytest.mark.parametrize("text", [b"", b"\x00", b"\xff" * 64, (2).to_bytes(8, "little") + b"[]"])
def test_a_damaged_model_is_bad_input(tmp_path, text) -> None:
    (tmp_path / "model").write_bytes(text)
    with pytest.raises(BadInput, match="not a safetensors file"):
        TensorFile(tmp_path / "model")


def test_a_truncated_model_is_bad_input(tmp_path) -> None:
    whole = write_safetensors(tmp_path / "model", {"w": ("F32", [2], pack_floats(1.0, 2.0))})
    whole.write_bytes(whole.read_bytes()[:-4])
    with pytest.raises(BadInput, match="4 of 8 bytes"):
        TensorFile(whole)
