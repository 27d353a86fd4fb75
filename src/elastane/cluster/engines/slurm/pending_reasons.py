"""Why Slurm has not started a job yet, in words. Pure."""

import re

from elastane.common.safe_text import escape_line

LONGEST_REASON = 160
_REASONS = {
    "Resources": "no machine has enough free devices, processors or memory now",
    "Priority": "other jobs have a higher priority",
    "Dependency": "it waits for another job",
    "BeginTime": "its time to begin has not come",
    "Cleaning": "the machines are cleaned up after an earlier attempt to start it",
    "JobHeldUser": "its user holds it; scontrol release lets it go on",
    "JobHeldAdmin": "an operator of Slurm holds it",
    "Licenses": "the licences that it asks for are taken",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition starts no jobs now",
    "PartitionNodeLimit": "its partition does not allow this number of machines",
    "PartitionTimeLimit": "its time limit is longer than that of its partition",
    "PartitionConfig": "its partition does not allow what it asks for",
    "ReqNodeNotAvail": "machines that it needs are down, drained or reserved",
    "NodeDown": "a machine that it needs is down",
    "Reservation": "its reservation has not begun, or is full",
    "ReservationDeleted": "its reservation was removed",
    "BadConstraints": "no machine has what it asks for",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
    "QOSNotAllowed": "its QOS is not allowed for its account or partition",
    "AccountNotAllowed": "its account may not use its partition",
    "JobArrayTaskLimit": "its array of jobs has a limit",
    "FrontEndDown": "a machine that it needs is down",
    "DeadLine": "it cannot end before its deadline",
    "None": "Slurm has not looked at it yet",
    "": "Slurm has not looked at it yet",
}
_LIMITS = (
    (re.compile(r"QOS\w*User\w*"), "a limit of its QOS for each user is reached"),
    (re.compile(r"QOS\w*Account\w*"), "a limit of its QOS for each account is reached"),
    (re.compile(r"QOSGrp\w*"), "a limit of its QOS for all users is reached"),
    (re.compile(r"QOS\w*"), "a limit of its QOS is reached, or it asks for more than that"),
    (re.compile(r"AssocGrp\w*"), "a limit of its account is reached"),
    (re.compile(r"Assoc\w*"), "a limit of its user in its account is reached"),
    (re.compile(r"MaxGRES\w*"), "it asks for more devices than its account or QOS allows"),
)


def explain_pending(reason: str) -> str:
    """Return why a job waits, with the word of Slurm, for which people can search.

    Args:
        reason: of ``squeue``: a word, in some cases with details after a comma, or a text.
    """
    word, _, details = reason.partition(",")
    known = _REASONS.get(word) or next((text for form, text in _LIMITS if form.fullmatch(word)), None)
    if known is None:
        return f"Slurm gives the reason {escape_line(reason, LONGEST_REASON)}"
    if not word or word == "None":
        return known
    return f"{known} ({escape_line(word + ',' * bool(details) + details, LONGEST_REASON)})"
