"""Options of torchrun and of ``accelerate launch`` change nothing, or are refused in words."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from typer.main import get_command

from elastane.cli import contract_options, devices
from elastane.cli.launcher_options import ACCELERATE, FLAG, TORCHRUN, find_launcher_option
from elastane.cli.main import app
from elastane.run.nouns.spec import RunRecord

PAGE = Path(__file__).parents[3] / "docs" / "unmodified-scripts.md"
BLOCK = re.compile(r"<!-- (?P<launcher>torchrun|accelerate) -->\n.*?<!-- end -->", re.DOTALL)
TABLES = {"torchrun": TORCHRUN, "accelerate": ACCELERATE}


@pytest.fixture
def typed(elastane, script, monkeypatch):
    """Return a function that types a command, and returns the spec of the run that it would train."""
    started = []

    def train(opened, console, *, as_json):
        with opened as (directory, _):
            started.append(msgspec.json.decode(directory.run.read_bytes(), type=RunRecord).spec)

    for module in ("run", "launch"):
        monkeypatch.setattr(f"elastane.cli.runs.{module}.train_to_end", train)

    def type_words(*words):
        result = elastane(*words, script, "--lr", "1")
        assert result.exit_code == 0, result.output
        assert started[-1].args == ("--lr", "1")
        return started[-1]

    return type_words


def test_a_command_line_of_torchrun_starts_a_run(typed):
    spec = typed(
        *("run", "--contract", "torchrun", "--standalone", "--nnodes=1:1", "--node_rank", "0"),
        *("--nproc_per_node", "2", "--max_restarts=3", "--rdzv-backend", "c10d"),
        *("--rdzv_endpoint=localhost:0", "--rdzv_id", "7", "--master_port", "29501"),
    )
    assert (spec.contract.processes, spec.contract.max_restarts) == (2, 3)


def test_a_command_line_of_accelerate_starts_a_run(typed):
    spec = typed(
        *("launch", "--multi_gpu", "--num_machines", "1", "--num-processes=2", "--machine_rank", "0"),
        *(
            "--main_process_port",
            "29501",
            "--mixed_precision=bf16",
            "--gpu-ids",
            "0,1",
            "--dynamo_backend",
            "no",
        ),
    )
    assert (spec.min_workers, spec.max_workers) == (2, 2)
    assert spec.contract.environment["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert spec.contract.environment["CUDA_VISIBLE_DEVICES"] == "0,1"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("run --contract torchrun --nnodes 1:4", "--workers MIN:MAX"),
        ("run --contract torchrun --no_python", "give a Python script"),
        ("run --contract torchrun -t 3", "elastane logs RUN"),
        ("run --contract torchrun --shutdown-timeout=9", "--grace 30s"),
        ("run --standalone", "add --contract torchrun"),
        ("submit --contract torchrun --dry-run --log_dir x", "elastane logs RUN"),
        ("submit --contract torchrun --dry-run --nnodes=2", "--workers MIN:MAX"),
        ("submit --contract torchrun --dry-run --nproc_per_node gpu", "write a number"),
        ("launch --num_machines 2", "docs/many-machines.md"),
        ("launch --use_fsdp --fsdp_version 2", "--copies"),
        ("launch --deepspeed_config_file x", "--copies"),
        ("launch --num_cpu_threads_per_process 4", "--threads N"),
        ("launch --dynamo_backend inductor", "torch.compile"),
        ("launch --tpu", "use accelerate launch"),
    ],
)
def test_what_cannot_be_used_is_refused_with_another_way(elastane, script, words, says):
    result = elastane(*words.split(), "--json", script)
    assert result.exit_code == 2
    answer = json.loads(result.stdout)["error"]
    assert answer["means"]
    assert says in answer["do"]
    assert f"error: {answer['what']}" in result.stderr


def test_an_unknown_option_is_still_unknown(elastane, script):
    assert "No such option" in elastane("run", "--labourers", "2", script).output


@pytest.mark.parametrize(("word", "count"), [("gpu", 3), ("auto", 3), ("cpu", 2)])
def test_the_words_of_torchrun_count_the_devices_of_this_machine(typed, monkeypatch, word, count):
    monkeypatch.setattr(contract_options, "count_gpus", lambda: 3)
    monkeypatch.setattr(contract_options, "count_devices", lambda: (3, "gpu"))
    monkeypatch.setattr(contract_options, "count_cores", lambda: 2)
    assert typed("run", "--contract", "torchrun", "--nproc-per-node", word).contract.processes == count


def test_a_machine_without_gpus_has_none_to_count(elastane, script, monkeypatch):
    monkeypatch.setattr(contract_options, "count_gpus", lambda: 0)
    result = elastane("run", "--contract", "torchrun", "--nproc-per-node", "gpu", script)
    assert result.exit_code == 2
    assert "no NVIDIA GPU" in result.stderr


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 4), ("0,1", 2), ("", 0), ("-1", 0), ("2,-1,3", 1), ("0,1,2,3,4,5", 4)]
)
def test_only_visible_gpus_are_counted(tmp_path, monkeypatch, visible, count):
    for number in range(4):
        (tmp_path / str(number)).mkdir()
    monkeypatch.setattr(devices, "GPUS", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert devices.count_gpus() == count


def list_names(command: str) -> set[str]:
    return {name for one in get_command(app).commands[command].params for name in one.opts}


def test_every_option_of_torchrun_is_known():
    from torch.distributed.run import get_args_parser

    names = {name for action in get_args_parser()._actions for name in action.option_strings}
    known = list_names("run") | {"-h", "--help"}
    assert len(names) > 40
    assert {one for one in names if one.replace("_", "-") not in known and not find(one, TORCHRUN)} == set()


def test_every_option_of_accelerate_launch_is_known():
    launch = pytest.importorskip("accelerate.commands.launch")
    names = {name for one in launch.launch_command_parser()._actions for name in one.option_strings}
    known = {name.replace("_", "-") for name in list_names("launch")} | {"-h", "--help"}
    assert len(names) > 100
    assert {one for one in names if one.replace("_", "-") not in known and not find(one, ACCELERATE)} == set()


def find(name, launcher):
    return find_launcher_option(name, launcher) is not None


def format_table(launcher):
    yield "| option | here |"
    yield "|---|---|"
    for one in launcher:
        here = "refused" if one.accepted is None else "accepted"
        if one.accepted not in (None, FLAG, ".*"):
            here = f"only `{one.accepted.partition('(')[0]}` is accepted"
        advice = "" if one.accepted in (FLAG, ".*") else f". Otherwise: {one.do}"
        advice = f". Instead: {one.do}" if one.accepted is None else advice
        names = ", ".join(f"`{name}`" for name in one.names)
        yield f"| {names} | {here}: {one.means}{advice} |"


def format_block(match: re.Match[str]) -> str:
    return "\n".join((f"<!-- {match[1]} -->", *format_table(TABLES[match[1]]), "<!-- end -->"))


def test_the_tables_on_the_page_are_up_to_date(request: pytest.FixtureRequest):
    text = PAGE.read_text()
    assert [match[1] for match in BLOCK.finditer(text)] == list(TABLES)
    generated = BLOCK.sub(format_block, text)
    if request.config.getoption("--rewrite"):
        PAGE.write_text(generated)
    else:
        assert generated == text, "run this test with --rewrite, and read the difference"
