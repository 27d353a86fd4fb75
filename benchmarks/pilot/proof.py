"""The proof that each job of the pilot trained the same bits as a reference run of its script."""

import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from elastane.run.nouns.rundir import RunDir

import machine
from pilot.arm import ROOT, list_import_paths
from pilot.controller import ELASTANE, end_jobs
from pilot.record import ArmRecord
from pilot.scenario import Scenario, Submission


def compare_with_references(
    scenario: Scenario, arms: Sequence[ArmRecord], home: Path
) -> dict[str, dict[str, bool]]:
    """Compare all jobs that should have finished with their reference runs, by job and arm."""
    jobs = [job for job in scenario.jobs if job.ends == "finished"]

    def compare(job: Submission) -> dict[str, bool]:
        reference = RunDir(home / "runs" / job.name)
        trained = train_reference(scenario, job, reference)
        runs = {arm.name: arm.run_dir(job.name) for arm in arms}
        return {name: trained and is_proved(run) and is_equal(run, reference) for name, run in runs.items()}

    pool = ThreadPoolExecutor(machine.count_cores())
    try:
        return dict(zip((job.name for job in jobs), pool.map(compare, jobs), strict=True))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        end_jobs(home)


def train_reference(
    scenario: Scenario, job: Submission, run_dir: RunDir, further: Sequence[str] = ()
) -> bool:
    """Train a job undisturbed on one worker at the machine's full speed; return whether it succeeded.

    Args:
        further: more options of ``elastane run``.
    """
    spec = scenario.make_spec(job, ROOT, {})
    options = ("--workers=1:1", "--checkpoint-every=never", f"--run-dir={run_dir.root}", *further)
    return _succeeds("run", *options, spec.script, *spec.args)


def is_proved(run_dir: RunDir) -> bool:
    """Return whether ``elastane verify`` proves a run by its records."""
    return _succeeds("verify", str(run_dir.root))


def is_equal(run_dir: RunDir, reference: RunDir) -> bool:
    """Return whether ``elastane verify`` finds a run equal to another one."""
    return _succeeds("verify", str(run_dir.root), str(reference.root))


def _succeeds(*words: str) -> bool:
    env = {**os.environ, "PYTHONPATH": list_import_paths()}
    return (
        subprocess.run(
            [*ELASTANE, *words], env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False
        ).returncode
        == 0
    )
