"""Options of ``elastane run``: accepted values, defaults, and errors."""

import socket
from pathlib import Path

import msgspec
import pytest

from elastane.cli.runs.debugger import check_debug_options
from elastane.cli.runs.run_options import RunOptions
from elastane.cli.runs.run_spec import (
    build_spec,
    change_spec,
    list_dropped_commands,
    list_remarks,
    restrict_sizes,
)
from elastane.common.errors import BadInput
from elastane.run.nouns.hosts import RunHost, parse_run_hosts
from elastane.run.nouns.spec import NO_LIMIT, CheckpointPolicy, RunSpec


@pytest.fixture(autouse=True)
def no_name_service(monkeypatch):
    # Threads of earlier tests may call it too, each in its own way.
    def refuse(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def build(options: RunOptions, script: Path, name: str = "trial", *, cpus: int = 8) -> RunSpec:
    return build_spec(options, script, ("--lr", "0.1"), name=name, cpus=cpus)


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
def test_the_range_of_workers_has_defaults(script, cpus, changes, expected) -> None:
    spec = build(RunOptions(**changes), script, "trial", cpus=cpus)
    assert (spec.min_workers, spec.max_workers, spec.start) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"listen": "127.0.0.1"}, (1, NO_LIMIT, 8)),
        ({"listen": "127.0.0.1", "workers": "2:6"}, (2, 6, 6)),
        ({"hosts": "localhost:3,other:4", "listen": "127.0.0.1"}, (1, NO_LIMIT, 3)),
        ({"hosts": "a:3,b:4", "listen": "127.0.0.1"}, (1, NO_LIMIT, 1)),
        ({"hosts": "localhost:3,other", "listen": "127.0.0.1"}, (1, NO_LIMIT, 3)),
    ],
)
def test_a_run_on_several_machines_grows_with_them(script, changes, expected) -> None:
    spec = build(RunOptions(**changes), script)
    assert (spec.min_workers, spec.max_workers, spec.start) == expected
    assert not spec.self_sizing
    assert spec.directory == str(Path.cwd())


@pytest.mark.parametrize(
    ("changes", "decides"),
    [
        ({}, True),
        ({"workers": "2:6"}, True),
        ({"workers": "2:6", "start": 2}, False),
        ({"workers": "4"}, False),
    ],
)
def test_the_controller_sizes_a_run_with_a_range_and_no_start(script, changes, decides):
    assert build(RunOptions(**changes), script, "trial", cpus=8).self_sizing is decides


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"workers": "3:1"}, "MIN 3 is larger than MAX 1"),
        ({"encrypt": True}, "--encrypt needs --listen"),
        ({"transport": "nixl"}, "--transport nixl needs --listen"),
        ({"transport": "nixl", "listen": "127.0.0.1", "encrypt": True}, "cannot be combined with --encrypt"),
        ({"claims": "s3://bucket/x"}, "--claims needs --listen"),
        ({"claims": "gs://bucket/x", "listen": "127.0.0.1"}, "cannot be kept at gs:// URLs"),
        ({"ports": "1-300"}, "--advertise and --ports need --listen"),
        ({"ssh": "ssh -p 22"}, "--ssh needs --hosts"),
        ({"hosts": "localhost:1", "ssh": "'"}, "No closing quotation"),
        ({"hosts": "no-such-host.invalid:1"}, "finds no address for no-such-host.invalid"),
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
    ],
)
def test_an_invalid_option_is_refused_with_an_explanation(script, changes, said) -> None:
    with pytest.raises(BadInput) as refused:
        build(RunOptions(**changes), script, "trial", cpus=8)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("path", "said"), [("/no/such/train.py", "there is no script"), ("/", "is not a file")]
)
def test_a_script_that_cannot_be_read_is_refused_with_an_explanation(path, said) -> None:
    with pytest.raises(BadInput, match=said):
        build(RunOptions(), Path(path))


@pytest.mark.parametrize("name", ["", "../up", "-x", "a b", "x" * 101])
def test_a_name_that_no_directory_can_have_is_refused(script, name) -> None:
    with pytest.raises(BadInput, match="cannot name a run"):
        build(RunOptions(), script, name)


def test_more_copies_than_workers_are_allowed_with_a_remark(script) -> None:
    spec = build(RunOptions(workers="1:4", copies="2"), script, "trial")
    assert spec.copies == 2
    assert "with fewer than 2 workers" in list_remarks(spec)[0]
    assert list_remarks(build(RunOptions(), script)) == []


def test_the_script_is_found_from_any_directory(monkeypatch, script) -> None:
    monkeypatch.chdir(script.parent)
    spec = build(RunOptions(), Path(script.name))
    assert Path(spec.script) == script
    assert spec.args == ("--lr", "0.1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5GB", 5 * 10**9), ("500 MB", 5 * 10**8), ("2GiB", 2 * 2**30), ("1.5k", 1500), ("1000", 1000)],
)
def test_a_size_has_a_unit(script, text, expected) -> None:
    assert build(RunOptions(max_shard_size=text), script, "n").max_shard_bytes == expected


@pytest.mark.parametrize("text", ["", "big", "-1", "0", "5XB"])
def test_an_invalid_size_is_refused(script, text) -> None:
    with pytest.raises(BadInput, match="--max-shard-size"):
        build(RunOptions(max_shard_size=text), script, "n")


def test_saving_the_optimizer_needs_a_copy_on_every_worker(script) -> None:
    assert build(RunOptions(save_optimizer=True), script, "n").save_optimizer
    with pytest.raises(BadInput, match="--save-optimizer needs --copies all"):
        build(RunOptions(save_optimizer=True, copies="2"), script, "n")


def test_a_debugged_run_has_one_worker_and_does_not_size_itself(script):
    spec = build(RunOptions(debug=True), script, "trial")
    assert (spec.min_workers, spec.max_workers, spec.start) == (1, 1, 1)
    assert spec.debug
    assert not spec.self_sizing


def test_a_resumed_run_is_debugged_only_on_request():
    spec = RunSpec(name="trial", script="/train.py", min_workers=2, max_workers=4, start=3)
    debugged = change_spec(spec, RunOptions(debug=True), 8)
    assert (debugged.min_workers, debugged.max_workers, debugged.start, debugged.debug) == (1, 1, 1, True)
    assert not change_spec(debugged, RunOptions(), 8).debug


def test_a_resumed_run_runs_no_command_that_was_not_typed_again():
    hosts = (RunHost("a", 4), RunHost("b", 4))
    spec = RunSpec(
        name="trial", script="/train.py", max_workers=8, host_discovery="./evil", hosts=hosts, ssh=("./evil",)
    )
    changed = change_spec(spec, RunOptions(resume="trial"), 8)
    assert "evil" not in repr(changed)
    assert [note.partition(";")[0] for note in list_dropped_commands(spec, changed)] == [
        "the run had --host-discovery-script ./evil",
        "the run had --ssh ./evil",
    ]
    typed = change_spec(spec, RunOptions(resume="trial", host_discovery_script="./own", ssh="ssh -p 2"), 8)
    assert (typed.host_discovery, typed.ssh, typed.self_sizing) == ("./own", ("ssh", "-p", "2"), False)
    assert list_dropped_commands(spec, typed) == []
    with pytest.raises(BadInput, match="--start cannot be combined"):
        change_spec(spec, RunOptions(resume="trial", host_discovery_script="./own", start=1), 8)


@pytest.mark.parametrize("address", ["-Fevil", "-o@b", "a@-b", "a\n", "a b"])
def test_a_host_is_never_an_option_of_ssh(address):
    document = msgspec.json.encode({"address": address})
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(document, type=RunHost)
    with pytest.raises(BadInput):
        parse_run_hosts(f"{address}:4")


def test_a_run_with_legal_sizes_starts_with_one_and_has_no_other_machines(script):
    spec = build(RunOptions(workers="2:8"), script)
    assert restrict_sizes(spec, (2, 4, 8)).sizes == (2, 4, 8)
    assert restrict_sizes(spec, ()) == spec
    with pytest.raises(BadInput, match=r"--start 3 is not one of workers\.sizes: 2, 4, 8") as refused:
        restrict_sizes(build(RunOptions(workers="2:8", start=3), script), (2, 4, 8))
    assert "--workers MIN:MAX" in refused.value.do
    for elsewhere in ({"listen": "127.0.0.1"}, {"host_discovery_script": "./hosts"}):
        with pytest.raises(BadInput, match="cannot be combined with several machines"):
            restrict_sizes(build(RunOptions(workers="2:8", **elsewhere), script), (2, 4, 8))


def test_a_resumed_run_keeps_its_legal_sizes_until_others_are_typed():
    spec = RunSpec(name="trial", script="/train.py", min_workers=2, max_workers=8, start=2, sizes=(2, 4, 8))
    assert change_spec(spec, RunOptions(), 8).sizes == (2, 4, 8)
    assert change_spec(spec, RunOptions(start=4), 8).start == 4
    with pytest.raises(BadInput, match=r"--start 3 is not one of workers\.sizes"):
        change_spec(spec, RunOptions(start=3), 8)
    assert change_spec(spec, RunOptions(workers="1:3", start=3), 8).sizes == ()
    assert change_spec(spec, RunOptions(debug=True), 8).sizes == ()


def test_a_resumed_run_keeps_the_checkpoint_settings_that_were_not_typed():
    policy = CheckpointPolicy(url="s3://bucket/x", every_s=90.0, each_epoch=True, keep_best=("a:b", "max"))
    spec = RunSpec(name="trial", script="/train.py", checkpoints=policy)
    assert change_spec(spec, RunOptions(), 8).checkpoints == policy
    after = change_spec(spec, RunOptions(keep_last=5), 8).checkpoints
    assert after == msgspec.structs.replace(policy, keep_last=5)


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
def test_options_that_contradict_debug_are_refused_by_name(contradiction, words):
    with pytest.raises(BadInput) as refused:
        check_debug_options(**{"workers": None, "start": None, "as_json": False} | contradiction)
    assert words in refused.value.what
    assert refused.value.means
    assert refused.value.do


@pytest.mark.parametrize("workers", [None, "1", "1:1"])
def test_one_worker_does_not_contradict_debug(workers):
    check_debug_options(workers=workers, start=1, as_json=False)
