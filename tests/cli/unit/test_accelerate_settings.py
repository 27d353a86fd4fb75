"""Options and files of ``accelerate launch`` become the environment of a script, or are refused in words."""

import dataclasses

import pytest

from elastane.cli.runs.accelerate_settings import (
    AccelerateFile,
    AccelerateOptions,
    build_accelerate_environment,
    choose_worker_range,
    find_key,
    read_accelerate_file,
)
from elastane.common.errors import BadInput

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


def test_the_debug_mode_of_a_file_is_that_of_the_script(tmp_path):
    file = read_accelerate_file(write(tmp_path, "debug: true\n"))
    assert build_accelerate_environment(AccelerateOptions(), file)["ACCELERATE_DEBUG_MODE"] == "true"


@pytest.mark.parametrize(
    "text",
    [
        "main_process_ip: 10.0.0.1\nmain_process_port: 29501\nrdzv_backend: c10d\n",
        "downcast_bf16: false\nsame_network: null\nmain_training_function: train\n",
        "num_machines: 1\nmachine_rank: 0\nenable_cpu_affinity: false\ndynamo_backend: NO\n",
        "fsdp_config: {}\ntpu_env: []\ntpu_name: null\ncommands: null\ngpu_ids: null\n",
        '{"compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU", "debug": false}',
    ],
)
def test_what_changes_nothing_is_accepted(tmp_path, text):
    assert read_accelerate_file(write(tmp_path, text)) == AccelerateFile()


@pytest.mark.parametrize(
    ("text", "says", "instead"),
    [
        ("distributed_type: FSDP\n", "sets distributed_type to FSDP", "--copies"),
        ("distributed_type: XLA\n", "sets distributed_type to XLA", "accelerate launch"),
        ("compute_environment: AMAZON_SAGEMAKER\n", "AMAZON_SAGEMAKER", "accelerate launch"),
        ("num_machines: 2\n", "sets num_machines to 2", "docs/many-machines.md"),
        ("machine_rank: 1\n", "sets machine_rank to 1", "omit it"),
        ("enable_cpu_affinity: true\n", "sets enable_cpu_affinity to True", "omit it"),
        ("fsdp_config:\n  fsdp_version: 2\n", "sets fsdp_config", "--copies"),
        ("deepspeed_config:\n  zero_stage: 3\n", "sets deepspeed_config", "--copies"),
        ("megatron_lm_config:\n  megatron_lm_tp_degree: 2\n", "sets megatron_lm_config", "--copies"),
        ("parallelism_config:\n  parallelism_config_cp_size: 2\n", "sets parallelism_config", "--copies"),
        ("dynamo_config:\n  dynamo_backend: INDUCTOR\n", "sets dynamo_config", "torch.compile"),
        ("dynamo_backend: INDUCTOR\n", "sets dynamo_backend to INDUCTOR", "torch.compile"),
        ("fp8_config:\n  backend: TE\n", "sets fp8_config", "Accelerator"),
        ("mpirun_config:\n  mpirun_hostfile: x\n", "sets mpirun_config", "accelerate launch"),
        ("tpu_name: x\n", "sets tpu_name", "accelerate launch"),
        ("commands:\n- ls\n", "sets commands", "accelerate launch"),
        ("num_processes: many\n", "num_processes", "accelerate config"),
        ("mixed_precision: fp8\n", "sets mixed_precision to fp8", "Accelerator"),
        ("mixed_precison: bf16\n", "unknown key: mixed_precison", "correct or remove it"),
        ("- 1\n", "has no settings", "accelerate config"),
        ("a: [\n", "is not YAML", ""),
    ],
)
def test_a_file_that_asks_for_more_is_refused_with_another_way(tmp_path, text, says, instead):
    with pytest.raises(BadInput, match=says) as refused:
        read_accelerate_file(write(tmp_path, text))
    assert instead in refused.value.do


def test_every_key_of_a_file_of_accelerate_is_known():
    written = pytest.importorskip("accelerate.commands.config.config_args")
    # A file for SageMaker is refused before its other keys matter.
    names = {field.name for field in dataclasses.fields(written.ClusterConfig)}
    assert len(names) > 20
    honoured = set(AccelerateFile.__struct_fields__)
    assert {name for name in names - honoured if find_key(name) is None} == set()


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BadInput, match=r"cannot read .*no-such\.yaml"):
        read_accelerate_file(tmp_path / "no-such.yaml")


def test_numbers_below_one_are_refused():
    with pytest.raises(BadInput, match="--num_processes 0 is below 1"):
        choose_worker_range(AccelerateOptions(num_processes=0), AccelerateFile())
    with pytest.raises(BadInput, match="--gradient_accumulation_steps 0 is below 1"):
        build_accelerate_environment(AccelerateOptions(gradient_accumulation_steps=0), AccelerateFile())
