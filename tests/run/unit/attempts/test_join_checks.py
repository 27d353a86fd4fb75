"""A machine that does not fit a run is refused in words before it takes part."""

import hashlib

import msgspec
import pytest

import elastane
from elastane.common.errors import BadInput
from elastane.common.memory import read_available_bytes
from elastane.run.attempts.run_directory import claim_run_directory
from elastane.run.attempts.software import hash_script, list_own_versions
from elastane.run.machines.joining.join_checks import (
    check_clock,
    check_free_memory,
    check_script_text,
    check_software,
)
from elastane.run.nouns.spec import RunSoftware, RunSpec
from elastane.run.observability.run_files import read_record
from tests.pinned import SMALL_RUN

PINNED = msgspec.structs.replace(
    SMALL_RUN,
    script_digest=hashlib.sha256(b"train\n").hexdigest(),
    dataset_length=100,
    parameters=1 << 27,
    versions={"elastane": "1.0", "torch": "2.13.0", "python": "3.11.7", "device": "cpu"},
)


@pytest.mark.parametrize("skew_s", [-299.0, 0.0, 299.0])
def test_a_clock_may_be_some_minutes_off(skew_s) -> None:
    check_clock(1e9, 1e9 + skew_s)


@pytest.mark.parametrize(("skew_s", "words"), [(7200.0, "2 h ahead of"), (-90000.0, "1 d 1 h behind")])
def test_a_clock_that_is_hours_off_is_refused(skew_s, words) -> None:
    with pytest.raises(BadInput, match=words):
        check_clock(1e9, 1e9 + skew_s)


def test_other_versions_are_named() -> None:
    versions = {"elastane": "1.0", "torch": "2.13.0", "python": "3.11.7"}
    software = RunSoftware(versions=versions, architecture="x86_64", script_digest="")
    check_software(software, versions, "x86_64")
    with pytest.raises(BadInput, match=r"torch is missing, the run's is 2.13.0; python is 3.12.1"):
        check_software(software, {"elastane": "1.0", "python": "3.12.1"}, "x86_64")


def test_a_run_has_its_software_before_any_worker_starts(tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text("train\n")
    spec = RunSpec(name="run", script=str(script), listen="127.0.0.2")
    with claim_run_directory(spec, tmp_path / "run", linked=False) as run_dir:
        software = read_record(run_dir).software
    assert software is not None
    assert software.versions == list_own_versions()
    assert software.versions["elastane"] == elastane.__version__
    assert software.script_digest == hashlib.sha256(b"train\n").hexdigest()


def test_another_script_is_refused(tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text("train\n")
    digest = hash_script(script)
    check_script_text(script, digest)
    script.write_text("train differently\n")
    check_script_text(script, "")
    with pytest.raises(BadInput, match="is another script than the run's"):
        check_script_text(script, digest)


def test_too_little_memory_is_refused_with_the_numbers() -> None:
    check_free_memory(PINNED, 4, 4 << 30)
    with pytest.raises(BadInput, match=r"3.0 GiB of free memory, and 4 workers need at least 4.0 GiB"):
        check_free_memory(PINNED, 4, 3 << 30)


def test_the_free_memory_is_that_of_the_container(tmp_path) -> None:
    memory, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    memory.write_text("MemTotal: 9 kB\nMemAvailable:    2048 kB\n")
    assert read_available_bytes(memory, limit) == 2 << 20
    limit.write_text("max\n")
    assert read_available_bytes(memory, limit) == 2 << 20
    limit.write_text("1048576\n")
    assert read_available_bytes(memory, limit) == 1 << 20
