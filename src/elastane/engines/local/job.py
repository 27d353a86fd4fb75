"""From a job to the run that this machine makes of it."""

from pathlib import Path

from elastane.api.errors import BadInput
from elastane.api.jobs import JobSpec
from elastane.api.spec import CheckpointPolicy, RunSpec


def run_spec_of(job: str, spec: JobSpec) -> RunSpec:
    """The run of a job.

    Args:
        job: unique name; also that of the run.
        spec: of the job.

    Raises:
        BadInput: this engine cannot run it.
    """
    if not spec.script:
        raise BadInput(
            f"job {job} names no script",
            means="the local engine starts Python scripts, each worker a process that runs it",
            do="write script: and args: instead of command:",
        )
    if not Path(spec.script).is_absolute():
        raise BadInput(
            f"job {job} names the script {spec.script}, which is not an absolute path",
            means="the engine works in no directory of the user's",
            do="elastane submit makes it absolute; through the API, write the whole path",
        )
    policy = spec.elastic_policy
    return RunSpec(
        name=job,
        script=spec.script,
        args=spec.args,
        # How few are too few is the controller's to say, and may change while the job runs.
        min_workers=1,
        max_workers=policy.max_replicas,
        start=policy.min_replicas,
        checkpoints=CheckpointPolicy(auto=True),
    )
