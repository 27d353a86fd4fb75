"""Why ``sbatch`` refuses a job, in words, and whether it would refuse the same job again. Pure."""

from elastane.cluster.nouns.agents import StartRefusal
from elastane.common.safe_text import fold_text

LONGEST_WHY = 500
MOST_LINES = 3
_FOR_EVER = (
    ("Invalid partition name", "Slurm has no such partition"),
    ("invalid partition specified", "Slurm has no such partition"),
    ("Invalid account or account/partition", "Slurm has no such account, or it may not use the partition"),
    ("Invalid qos", "Slurm has no such QOS, or the account may not use it"),
    ("Invalid generic resource", "Slurm has no such generic resource (gres)"),
    ("Invalid feature specification", "no machine has the features of the constraint"),
    ("Requested reservation is invalid", "Slurm has no such reservation, or this user may not use it"),
    ("Invalid node name", "Slurm has no machine of that name"),
    (
        "Requested node configuration is not available",
        "no machine of the partition meets the request",
    ),
    ("Requested time limit is invalid", "the time limit is missing, or longer than is allowed"),
    ("User's group not permitted", "this user may not use the partition"),
    ("Access/permission denied", "this user may not submit such a job"),
    ("More processors requested than permitted", "the partition does not allow this number of processors"),
    ("Memory required by task is not available", "no machine has that much memory"),
    ("Invalid Trackable RESource", "no machine meets the request"),
    ("unrecognized option", "this version of Slurm lacks an option that the engine needs"),
)
_NOT_NOW = (
    ("Job violates accounting/QOS policy", "a limit of the account or QOS is reached"),
    ("Job limit", "the limit of submitted jobs is reached"),
    ("Slurm temporarily unable to accept job", "Slurm accepts no more jobs now"),
    ("Required partition not available", "the partition is down or drained"),
    ("Requested partition configuration not available now", "the partition does not allow this now"),
    ("Unable to contact slurm controller", "the controller of Slurm does not answer"),
    ("Socket timed out", "the controller of Slurm does not answer"),
    ("Zero Bytes were transmitted", "the controller of Slurm does not answer"),
    ("authentication", "Slurm does not accept the credentials of this machine (munge)"),
)


def explain_refusal(errors: str) -> StartRefusal:
    """Return the refusal that ``sbatch`` has written to standard error.

    Args:
        errors: lines, of which the last ones are about the job. An unknown refusal may not last.
    """
    lines = [_strip_prefixes(line.strip()) for line in errors.splitlines() if line.strip()]
    words = fold_text("; ".join(lines[-MOST_LINES:]), LONGEST_WHY)
    for line in reversed(lines):
        for texts, for_ever in ((_FOR_EVER, True), (_NOT_NOW, False)):
            for part, why in texts:
                if part.lower() in line.lower():
                    return StartRefusal(f"{why} ({words})", for_ever)
    return StartRefusal(
        f"Slurm refused the job: {words}" if words else "Slurm refused the job without a reason"
    )


def _strip_prefixes(line: str) -> str:
    for prefix in ("sbatch: error: ", "allocation failure: ", "Batch job submission failed: "):
        line = line.removeprefix(prefix)
    return line
