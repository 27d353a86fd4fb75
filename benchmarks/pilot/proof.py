"""Whether the jobs of the pilot have trained what a quiet run of the same script trains, bit for bit."""

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
    """By job and arm, of all jobs that should have finished; see `same`."""
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
    """One worker on a device as fast as the machine, and nothing happens; whether it has ended well."""
    spec = scenario.spec(job, ROOT, {})
    options = ("--workers=1:1", "--checkpoint-every=never", f"--run-dir={run_dir.root}")
    return _does_well("run", *options, spec.script, *spec.args)


def same(run_dir: RunDir, quiet: RunDir) -> bool:
    """``elastane verify`` proves the run, and finds it and the quiet one equal."""
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
