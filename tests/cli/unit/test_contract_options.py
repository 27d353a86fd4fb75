"""Options of unmodified scripts: accepted values, defaults, and errors in words."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from elastane.cli.jobs.job_options import JobOptions
from elastane.cli.jobs.submission import Invocation, build_job
from elastane.cli.runs.run_options import RunOptions
from elastane.cli.runs.run_spec import build_spec, check_pinned_options
from elastane.cluster.engines.local.job_program import make_run_spec
from elastane.common.errors import BadField, BadInput
from elastane.run.nouns.spec import RunSpec, TorchrunContract


@pytest.fixture
def train(tmp_path) -> Path:
    script = tmp_path / "train.py"
    script.touch()
    return script


def build(train: Path, **options: object) -> RunSpec:
    return build_spec(RunOptions(**options), train, (), name="trial", cpus=2)


def submit(train: Path, **options: object):
    here = Invocation(directory=train.parent, environment={}, now=datetime.now(UTC))
    return build_job(train, (), JobOptions(**options), here, team="default")


def test_a_script_for_elastane_has_no_contract(train):
    assert build(train).contract is None


def test_the_contract_has_the_defaults_of_torchrun_and_no_checkpoints(train):
    spec = build(train, contract="torchrun")
    assert spec.contract == TorchrunContract(processes=1, grace_s=30.0, max_restarts=0)
    assert spec.checkpoints is None


def test_the_options_of_the_contract_are_kept(train):
    spec = build(
        train, contract="torchrun", nproc_per_node="2", max_restarts=3, grace="2min", stall_timeout="1h"
    )
    assert spec.contract == TorchrunContract(processes=2, grace_s=120.0, max_restarts=3, stall_s=3600.0)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"nproc_per_node": "2"}, "--nproc-per-node needs --contract torchrun"),
        ({"grace": "1s", "max_restarts": 1}, "--max-restarts and --grace need --contract torchrun"),
        (
            {"contract": "torchrun", "copies": "2", "checkpoint_every": "5min"},
            "--contract torchrun cannot be combined with --copies, --checkpoint-every",
        ),
        (
            {"contract": "torchrun", "save_optimizer": True},
            "--contract torchrun cannot be combined with --save-optimizer",
        ),
        (
            {"contract": "torchrun", "listen": "default"},
            "--contract torchrun cannot be combined with --listen",
        ),
        (
            {"contract": "torchrun", "processes": 2},
            "--contract torchrun cannot be combined with --processes",
        ),
        ({"contract": "torchrun", "nproc_per_node": "two"}, "invalid --nproc-per-node: 'two'"),
        ({"contract": "torchrun", "nproc_per_node": "0"}, "--nproc-per-node 0 is less than 1"),
        ({"contract": "torchrun", "max_restarts": -1}, "--max-restarts -1 is less than 0"),
        ({"contract": "torchrun", "stall_timeout": "0s"}, "--stall-timeout 0 leaves no time for anything"),
        ({"stall_timeout": "1h"}, "--stall-timeout needs --contract torchrun"),
        ({"contract": "torchrun", "grace": "soon"}, "invalid duration for --grace: 'soon'"),
    ],
)
def test_options_that_do_not_fit_are_refused(train, options, what):
    with pytest.raises(BadInput) as refused:
        build(train, **options)
    assert refused.value.what == what
    assert refused.value.do


def test_a_resumed_run_keeps_its_contract():
    with pytest.raises(BadInput, match="cannot be combined with --contract, --grace"):
        check_pinned_options(RunOptions(contract="torchrun", grace="1s"))


def test_a_job_of_an_unmodified_script_uses_a_device_for_each_process(train):
    job = submit(
        train,
        contract="torchrun",
        nproc_per_node="2",
        workers="1:3",
        grace="90s",
        max_restarts=1,
        stall_timeout="5min",
    )
    assert job.worker_devices == 2
    spec = make_run_spec("job", job, "python")
    assert spec.contract == TorchrunContract(processes=2, grace_s=90.0, max_restarts=1, stall_s=300.0)
    assert spec.checkpoints is None
    assert make_run_spec("job", submit(train), "python").contract is None


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"nproc_per_node": "2"}, "nprocPerNode"),
        ({"max_restarts": 1}, "maxRestarts"),
        ({"stall_timeout": "1s"}, "stallTimeoutSeconds"),
    ],
)
def test_a_job_without_the_contract_has_none_of_its_fields(train, options, field):
    with pytest.raises(BadField) as refused:
        submit(train, **options)
    assert refused.value.what == f"{field}: requires contract: torchrun, which is missing"
