"""The proof that each job of the pilot trained the same bits as a reference run of its script."""

import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from elastane.api.rundir import RunDir

import machine
from pilot.arm import ROOT, modules
from pilot.controller import ELASTANE, end_jobs
from pilot.recorded import Recorded
from pilot.scenario import Scenario, Submission


def compared(scenario: Scenario, arms: Sequence[Recorded], home: Path) -> dict[str, dict[str, bool]]:
    """Compare all jobs that should have finished with their reference runs, by job and arm; see `same`."""
    jobs = [job for job in scenario.jobs if job.ends == "finished"]

    def of(job: Submission) -> dict[str, bool]:
        quiet = RunDir(home / "runs" / job.name)
        trained = in_peace(scenario, job, quiet)
        return {arm.name: trained and same(arm.run_dir(job.name), quiet) for arm in arms}

    pool = ThreadPoolExecutor(machine.cores())
    try:
        return dict(zip((job.name for job in jobs), pool.map(of, jobs), strict=True))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        end_jobs(home)


def in_peace(scenario: Scenario, job: Submission, run_dir: RunDir) -> bool:
    """Train a job undisturbed on one worker at the machine's full speed; return whether it succeeded."""
    spec = scenario.spec(job, ROOT, {})
    options = ("--workers=1:1", "--checkpoint-every=never", f"--run-dir={run_dir.root}")
    return _does_well("run", *options, spec.script, *spec.args)


def same(run_dir: RunDir, quiet: RunDir) -> bool:
    """Return whether ``elastane verify`` proves a run and finds it equal to its reference run."""
    return _does_well("verify", str(run_dir.root)) and _does_well(
        "verify", str(run_dir.root), str(quiet.root)
    )


def _does_well(*words: str) -> bool:
    env = {**os.environ, "PYTHONPATH": modules()}
    return (
        subprocess.run(
            [*ELASTANE, *words], env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False
        ).returncode
        == 0
    )
