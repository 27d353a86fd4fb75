"""The controller of ``elastane run``, without training."""

import sys

import msgspec
import pytest

from elastane.cluster.controller.run_controller import (
    RunController,
    build_run_job,
    build_run_pool,
    read_run_explanation,
)
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunSpec
from tests.waiting import wait_until

SPEC = RunSpec(name="trial", script="/train.py", min_workers=1, max_workers=4, start=1, self_sizing=True)


@pytest.fixture
def run_dir(tmp_path) -> RunDir:
    run_dir = RunDir(tmp_path)
    run_dir.logs.mkdir()
    return run_dir


def lived(run_dir, attempt=1, spec=SPEC, devices=2):
    """Run it for an attempt until it has decided or refused; return its messages."""
    said = []
    with RunController(run_dir, spec, attempt, (devices, "cpu"), said.append) as controller:
        wait_until(lambda: not controller._thread.is_alive() or _decisions(run_dir), "it has decided")
    return said


def _decisions(run_dir):
    told = read_run_explanation(run_dir) if run_dir.controller.is_file() else None
    return told.decisions if told is not None else ()


def _job(run_dir):
    return read_run_explanation(run_dir).job


def test_the_controller_of_a_run_decides_with_the_devices_of_this_machine_and_explains(run_dir) -> None:
    assert lived(run_dir) == []
    told = read_run_explanation(run_dir)
    assert (told.job, told.workers) == ("trial", 2)
    assert "It is not larger: it needs 1 device more, and none is left on this machine." in (
        told.explanation.sentences
    )
    assert [decided.action for decided in told.decisions] == ["start"]


@pytest.mark.parametrize(("sizes", "workers"), [((), 3), ((1, 2, 4), 2)])
def test_a_run_grows_to_legal_sizes_only(run_dir, sizes, workers) -> None:
    assert lived(run_dir, spec=msgspec.structs.replace(SPEC, sizes=sizes), devices=3) == []
    assert read_run_explanation(run_dir).workers == workers


def test_the_next_attempt_of_a_run_has_the_devices_of_the_previous_one(run_dir) -> None:
    assert lived(run_dir) == []
    said = []
    with RunController(run_dir, SPEC, 2, (2, "cpu"), said.append) as controller:
        wait_until(
            lambda: not controller._thread.is_alive() or (_job(run_dir) == "trial.2" and _decisions(run_dir)),
            "it has decided",
        )
    assert said == []
    assert (_job(run_dir), read_run_explanation(run_dir).workers) == ("trial.2", 2)


def test_a_run_continues_without_its_controller_if_the_store_is_unusable(run_dir) -> None:
    run_dir.controller.mkdir()
    (said,) = lived(run_dir)
    assert said.startswith("the number of workers stays as it is:")
    assert "controller.db" in said


def test_without_its_packages_the_controller_of_a_run_says_what_to_install(run_dir, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "elastane.cluster.controller.loop", None)
    (said,) = lived(run_dir)
    assert "pip install 'elastane[controller]'" in said


def test_a_run_without_a_controller_has_no_reasons(run_dir) -> None:
    assert read_run_explanation(run_dir) is None


@pytest.mark.parametrize(
    ("processes", "threads", "least", "devices", "most"),
    [
        (1, 1, 1, (8, "cpu"), 8),
        (1, 2, 1, (8, "cpu"), 4),
        (1, 2, 1, (8, "gpu"), 8),
        (1, 1, 4, (2, "cpu"), 4),
        (2, 1, 1, (8, "cpu"), 4),
        (2, 2, 1, (8, "cpu"), 2),
        (4, 2, 1, (8, "gpu"), 2),
    ],
)
def test_a_process_takes_a_core_for_each_thread_or_a_gpu(processes, threads, least, devices, most) -> None:
    spec = RunSpec(
        name="t", script="/t.py", min_workers=least, max_workers=9, threads=threads, processes=processes
    )
    job = build_run_job(spec, 1, kind=devices[1])
    assert build_run_pool(job, devices).devices // job.worker_devices == most
