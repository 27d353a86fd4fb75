"""What operators write about Slurm is decoded strictly."""

import pytest

from elastane.cluster.engines.slurm.options import (
    SlurmOptions,
    SlurmPool,
    decode_slurm_options,
    decode_slurm_pool,
)
from elastane.cluster.nouns.agents import ELASTANE_COMMAND
from elastane.common.errors import BadField


def test_without_options_everything_is_left_to_slurm():
    assert decode_slurm_pool({}) == SlurmPool()
    assert decode_slurm_options({}) == SlurmOptions()
    assert decode_slurm_options({}).command == ELASTANE_COMMAND


def test_all_options_of_a_pool_are_decoded():
    options = {
        "partition": "gpu,gpu-long",
        "account": "lab_1",
        "qos": "high",
        "reservation": "course.2",
        "constraint": "a100&nvlink",
        "exclude": "n1,n2",
        "time": "90 min",
        "gres": "gpu:a100",
        "cpusPerDevice": "8",
        "memoryPerDevice": "64G",
    }
    pool = decode_slurm_pool(options)
    assert pool.time_s == 5400
    assert pool.memory_bytes_per_device == 64 << 30
    assert (pool.partition, pool.constraint, pool.gres) == ("gpu,gpu-long", "a100&nvlink", "gpu:a100")
    assert pool.count_cpus(4) == 32


@pytest.mark.parametrize(
    ("gres", "per_device", "cpus"), [("", None, 3), ("", 2, 6), ("gpu", None, None), ("gpu", 4, 12)]
)
def test_processors_are_devices_unless_there_are_others(gres, per_device, cpus):
    assert SlurmPool(gres=gres, cpus_per_device=per_device).count_cpus(3) == cpus


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2h", 7200), ("1-12:00:00", 129600), ("00:10:00", 600), ("1d 2h", 93600), ("100:00:00", 360000)],
)
def test_time_limits_are_durations_or_as_slurm_writes_them(text, seconds):
    assert decode_slurm_pool({"time": text}).time_s == seconds


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partition", "gpu --uid=0"),
        ("partition", "-gpu"),
        ("partition", "gpu\n"),
        ("partition", "gpu,"),
        ("account", "a b"),
        ("account", "$(id)"),
        ("qos", "x" * 200),
        ("reservation", "a;b"),
        ("constraint", "[a|b]"),
        ("constraint", "a&b|c"),
        ("constraint", "a*2"),
        ("exclude", "n[1-3]"),
        ("time", "60"),
        ("time", "0:00:00"),
        ("time", "0s"),
        ("time", "UNLIMITED"),
        ("gres", "gpu:a100:4"),
        ("gres", "gpu:4"),
        ("gres", "gpu,nic"),
        ("cpusPerDevice", "0"),
        ("cpusPerDevice", "9999"),
        ("cpusPerDevice", "1.5"),
        ("cpusPerDevice", "²"),
        ("memoryPerDevice", "64"),
        ("memoryPerDevice", "64GB"),
        ("memoryPerDevice", "0G"),
        ("partion", "gpu"),
        ("cpus_per_device", "4"),
    ],
)
def test_another_value_or_name_is_refused_and_named(name, value):
    with pytest.raises(BadField) as caught:
        decode_slurm_pool({name: value})
    assert caught.value.field == f"options.{name}"
    assert caught.value.do


def test_all_options_of_the_engine_are_decoded():
    options = {
        "command": "/opt/venv/bin/elastane --flag 'two words'",
        "setup": "module load cuda/12\nsource /opt/venv/bin/activate\n",
        "output": "/home/me/logs/%x.out",
        "conf": "/etc/slurm/slurm.conf",
        "bin": "/opt/slurm/bin",
        "answer": "5s",
        "accounting": "yes",
    }
    found = decode_slurm_options(options)
    assert found.command == ("/opt/venv/bin/elastane", "--flag", "two words")
    assert found.setup == options["setup"]
    assert (found.programs, found.answer_s, found.accounting) == ("/opt/slurm/bin", 5.0, True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("command", ""),
        ("command", "a 'b"),
        ("command", "a\nb"),
        ("setup", "a\0b"),
        ("setup", "a\rb"),
        ("output", "logs/out"),
        ("output", "/logs\nx"),
        ("conf", "slurm.conf"),
        ("bin", "bin"),
        ("answer", "0s"),
        ("answer", "2 h"),
        ("answer", "2"),
        ("accounting", "true"),
        ("color", "blue"),
    ],
)
def test_another_option_of_the_engine_is_refused_and_named(name, value):
    with pytest.raises(BadField) as caught:
        decode_slurm_options({name: value})
    assert caught.value.field == f"options.{name}"
    assert caught.value.do
