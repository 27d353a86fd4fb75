"""What ``elastane run`` accepts, what it fills in, and what it refuses in words."""

from pathlib import Path

import msgspec
import pytest

from elastane.api.errors import BadInput
from elastane.api.spec import RunSpec
from elastane.cli.runs.debugger import check_debug_options
from elastane.cli.runs.run_spec import Changes, Options, build_spec, change_spec, list_remarks


@pytest.fixture
def options(script: Path) -> Options:
    return Options(
        script=script,
        args=("--lr", "0.1"),
        workers=None,
        start=None,
        virtual_ranks=None,
        copies="all",
        convergence="exact",
        seed=0,
        threads=1,
        transport="shared",
        digest_every=50,
    )


def changed(options: Options, **changes) -> Options:
    return msgspec.structs.replace(options, **changes)


@pytest.mark.parametrize(
    ("cpus", "changes", "expected"),
    [
        (8, {}, (1, 8, 1)),
        (1, {}, (1, 2, 1)),
        (8, {"virtual_ranks": 4}, (1, 4, 1)),
        (8, {"workers": "2:6"}, (2, 6, 2)),
        (8, {"workers": "3"}, (3, 3, 3)),
        (2, {"workers": "1:16", "start": 5}, (1, 16, 5)),
    ],
)
def test_the_range_of_workers(options, cpus, changes, expected) -> None:
    spec = build_spec(changed(options, **changes), "trial", cpus)
    assert (spec.min_workers, spec.max_workers, spec.start) == expected


@pytest.mark.parametrize(
    ("changes", "decides"),
    [
        ({}, True),
        ({"workers": "2:6"}, True),
        ({"workers": "2:6", "start": 2}, False),
        ({"workers": "4"}, False),
    ],
)
def test_a_controller_decides_where_there_is_something_to_decide_and_nobody_does(options, changes, decides):
    assert build_spec(changed(options, **changes), "trial", 8).self_sizing is decides


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"workers": "3:1"}, "MIN 3 is larger than MAX 1"),
        ({"workers": "0:4"}, "MIN is 0"),
        ({"workers": "many"}, "not MIN:MAX"),
        ({"workers": "1:"}, "not MIN:MAX"),
        ({"workers": "1:99999999999999999999"}, "more than 1000000 workers"),
        ({"workers": "1:4", "start": 5}, "--start 5 is outside --workers 1:4"),
        ({"workers": "2:4", "start": 1}, "--start 1 is outside --workers 2:4"),
        ({"workers": "1:8", "virtual_ranks": 4}, "only 4 virtual ranks"),
        ({"virtual_ranks": 0}, "--virtual-ranks 0 is less than 1"),
        ({"copies": "0"}, "--copies 0 is less than 1"),
        ({"copies": "some"}, "neither 'all' nor a number"),
        ({"threads": 0}, "--threads 0 is less than 1"),
        ({"digest_every": 0}, "--digest-every 0 is less than 1"),
        ({"seed": -1}, "--seed -1 is less than 0"),
        ({"seed": 2**63}, "larger than 2**63 - 1"),
        ({"script": Path("/no/such/train.py")}, "there is no script"),
        ({"script": Path("/")}, "is not a file"),
    ],
)
def test_what_cannot_be_met_is_refused_in_words(options, changes, said) -> None:
    with pytest.raises(BadInput) as refused:
        build_spec(changed(options, **changes), "trial", 8)
    assert said in str(refused.value)


@pytest.mark.parametrize("name", ["", "../up", "-x", "a b", "x" * 101])
def test_a_name_is_a_directory_too(options, name) -> None:
    with pytest.raises(BadInput, match="cannot name a run"):
        build_spec(options, name, 8)


def test_more_copies_than_workers_are_allowed_and_remarked_on(options) -> None:
    spec = build_spec(changed(options, workers="1:4", copies="2"), "trial", 8)
    assert spec.copies == 2
    assert "with fewer than 2 workers" in list_remarks(spec)[0]
    assert list_remarks(build_spec(options, "trial", 8)) == []


def test_the_script_is_found_from_any_directory(options, monkeypatch, script) -> None:
    monkeypatch.chdir(script.parent)
    spec = build_spec(changed(options, script=Path(script.name)), "trial", 8)
    assert Path(spec.script) == script
    assert spec.args == ("--lr", "0.1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5GB", 5 * 10**9), ("500 MB", 5 * 10**8), ("2GiB", 2 * 2**30), ("1.5k", 1500), ("1000", 1000)],
)
def test_sizes_are_read_as_people_write_them(options, text, expected) -> None:
    assert build_spec(changed(options, max_shard_size=text), "n", 8).max_shard_bytes == expected


@pytest.mark.parametrize("text", ["", "big", "-1", "0", "5XB"])
def test_other_words_are_no_size(options, text) -> None:
    with pytest.raises(BadInput, match="--max-shard-size"):
        build_spec(changed(options, max_shard_size=text), "n", 8)


def test_the_optimizers_state_is_saved_only_where_one_worker_has_it_all(options) -> None:
    assert build_spec(changed(options, save_optimizer=True), "n", 8).save_optimizer
    with pytest.raises(BadInput, match="--save-optimizer needs --copies all"):
        build_spec(changed(options, save_optimizer=True, copies="2"), "n", 8)


def test_to_debug_there_is_one_worker_and_nobody_decides_about_more(options):
    spec = build_spec(changed(options, debug=True), "trial", 8)
    assert (spec.min_workers, spec.max_workers, spec.start) == (1, 1, 1)
    assert spec.debug
    assert not spec.self_sizing


def test_a_resumed_run_is_debugged_only_where_that_is_asked_for():
    spec = RunSpec(name="trial", script="/train.py", min_workers=2, max_workers=4, start=3)
    nothing = Changes(workers=None, start=None, copies=None, transport=None, checkpoints=None)
    debugged = change_spec(spec, msgspec.structs.replace(nothing, debug=True), 8)
    assert (debugged.min_workers, debugged.max_workers, debugged.start, debugged.debug) == (1, 1, 1, True)
    assert not change_spec(debugged, nothing, 8).debug


@pytest.mark.parametrize(
    ("contradiction", "words"),
    [
        ({"workers": "1:4"}, "--workers 1:4"),
        ({"workers": "2"}, "--workers 2"),
        ({"start": 3}, "--start 3"),
        ({"workers": "2:4", "start": 3}, "--workers 2:4 and --start 3"),
        ({"as_json": True}, "--json"),
    ],
)
def test_what_contradicts_debug_is_refused_by_name(contradiction, words):
    with pytest.raises(BadInput) as refused:
        check_debug_options(**{"workers": None, "start": None, "as_json": False} | contradiction)
    assert words in refused.value.what
    assert refused.value.means
    assert refused.value.do


@pytest.mark.parametrize("workers", [None, "1", "1:1"])
def test_one_worker_contradicts_nothing(workers):
    check_debug_options(workers=workers, start=1, as_json=False)
