"""When the processes of a run leave, in words: at a commit, or once an unmodified script has saved."""

from elastane.cluster.nouns.jobs import JobSpec
from elastane.common.durations import format_duration
from elastane.run.nouns.spec import RunSpec

AT_COMMIT = "at the next commit"


def describe_stop_time(spec: RunSpec | None) -> str:
    """Return when a run stops after a request, to follow a verb; None: its agent did not send the spec."""
    if spec is None or spec.contract is None:
        return AT_COMMIT
    return _describe_grace(spec.contract.grace_s)


def describe_restart(spec: RunSpec | None) -> str:
    """Return that the other workers restart, to follow an accepted change; empty: they train on."""
    if spec is None or spec.contract is None:
        return ""
    return f"; its script restarts at the new size {_describe_grace(spec.contract.grace_s)}"


def describe_job_stop_time(spec: JobSpec) -> str:
    """Return when a job stops after a request, to follow a verb."""
    if spec.contract == "elastane":
        return AT_COMMIT
    return _describe_grace(spec.elastic_policy.graceful_shutdown_timeout_in_seconds)


def _describe_grace(grace_s: float) -> str:
    return f"once it has saved, within {format_duration(grace_s)}"
