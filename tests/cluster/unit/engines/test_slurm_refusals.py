"""Why Slurm refuses a job, in words."""

import pytest

from elastane.cluster.engines.slurm.programs import explain_refusal

FAILED = "sbatch: error: Batch job submission failed: "
SUBMIT_LIMIT = "sbatch: error: QOSMaxSubmitJobPerUserLimit"
NO_MEMORY = "sbatch: error: Memory specification can not be satisfied"


@pytest.mark.parametrize(
    ("errors", "why", "for_ever"),
    [
        (
            f"sbatch: error: invalid partition specified: x\n{FAILED}Invalid partition name specified",
            "Slurm has no such partition (invalid partition specified: x; Invalid partition name specified)",
            True,
        ),
        (f"{FAILED}Invalid account or account/partition combination specified", "no such account", True),
        (f"{FAILED}Invalid qos specification", "no such QOS", True),
        ("sbatch: error: Invalid generic resource (gres) specification", "no such generic resource", True),
        (
            f"{NO_MEMORY}\n{FAILED}Requested node configuration is not available",
            "Memory specification can not be satisfied; Requested node configuration",
            True,
        ),
        (f"{FAILED}Requested time limit is invalid (missing or exceeds some limit)", "time limit", True),
        (f"{FAILED}Access/permission denied", "may not submit", True),
        (f"{FAILED}User's group not permitted to use this partition", "may not use the partition", True),
        (
            f"{SUBMIT_LIMIT}\n{FAILED}Job violates accounting/QOS policy (job submit limit, ...)",
            "a limit of the account or QOS is reached (QOSMaxSubmitJobPerUserLimit; Job violates",
            False,
        ),
        (f"{FAILED}Unable to contact slurm controller (connect failure)", "does not answer", False),
        (f"{FAILED}Socket timed out on send/recv operation", "does not answer", False),
        (f"{FAILED}Protocol authentication error", "credentials", False),
        ("sbatch: error: the site says no", "Slurm refused the job: the site says no", False),
        ("", "Slurm refused the job without a reason", False),
        ("\n \n", "Slurm refused the job without a reason", False),
    ],
)
def test_a_refusal_is_a_sentence(errors, why, for_ever):
    refusal = explain_refusal(errors)
    assert why in refusal.why
    assert refusal.for_ever is for_ever


def test_a_hostile_or_long_text_is_one_short_line():
    refusal = explain_refusal(f"sbatch: error: \x1b[2Jhello {'x' * 9000}\r\nlast")
    assert refusal.why.isprintable()
    assert len(refusal.why) < 700
