"""Options and files of ``accelerate launch`` become the environment of a script, or are refused in words."""

import pytest

from elastane.api.errors import BadInput
from elastane.cli.runs.accelerate_settings import (
    AccelerateFile,
    AccelerateOptions,
    build_accelerate_environment,
    choose_worker_range,
    read_accelerate_file,
)

WRITTEN_BY_ACCELERATE = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_CPU
downcast_bf16: 'no'
enable_cpu_affinity: false
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: true
"""


def write(tmp_path, text):
    path = tmp_path / "accelerate.yaml"
    path.write_text(text)
    return path


def test_a_file_of_accelerate_config_is_read(tmp_path):
    file = read_accelerate_file(write(tmp_path, WRITTEN_BY_ACCELERATE))
    options = AccelerateOptions()
    assert choose_worker_range(options, file) == "2"
    assert build_accelerate_environment(options, file) == {
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_USE_CPU": "True",
        "ACCELERATE_DYNAMO_BACKEND": "NO",
    }


def test_the_default_file_counts_unless_another_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert read_accelerate_file(None) == AccelerateFile()
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "default_config.yaml").write_text("num_processes: 3\n")
    assert read_accelerate_file(None).num_processes == 3
    assert read_accelerate_file(write(tmp_path, "num_processes: 4\n")).num_processes == 4


def test_typed_options_win_over_the_file():
    file = AccelerateFile(num_processes=2, mixed_precision="bf16")
    options = AccelerateOptions(num_processes=4, mixed_precision="no", gradient_accumulation_steps=8)
    assert choose_worker_range(options, file) == "4"
    environment = build_accelerate_environment(options, file)
    assert environment["ACCELERATE_MIXED_PRECISION"] == "no"
    assert environment["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] == "8"


def test_the_gpus_of_a_file_are_those_that_the_script_sees():
    environment = build_accelerate_environment(AccelerateOptions(), AccelerateFile(gpu_ids="1,3"))
    assert environment["CUDA_VISIBLE_DEVICES"] == "1,3"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("distributed_type: FSDP\n", "distributed_type FSDP on 1 machines"),
        ("num_machines: 2\n", "on 2 machines"),
        ("fsdp_config:\n  fsdp_version: 2\n", "sets fsdp_config"),
        ("deepspeed_config:\n  zero_stage: 3\n", "sets deepspeed_config"),
        ("num_processes: many\n", "num_processes"),
        ("mixed_precision: fp8\n", "mixed_precision"),
        ("- 1\n", "has no settings"),
        ("a: [\n", "is not YAML"),
    ],
)
def test_a_file_that_asks_for_more_is_refused(tmp_path, text, says):
    with pytest.raises(BadInput, match=says):
        read_accelerate_file(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BadInput, match=r"cannot read .*no-such\.yaml"):
        read_accelerate_file(tmp_path / "no-such.yaml")


def test_numbers_below_one_are_refused():
    with pytest.raises(BadInput, match="--num_processes 0 is below 1"):
        choose_worker_range(AccelerateOptions(num_processes=0), AccelerateFile())
    with pytest.raises(BadInput, match="--gradient_accumulation_steps 0 is below 1"):
        build_accelerate_environment(AccelerateOptions(gradient_accumulation_steps=0), AccelerateFile())
