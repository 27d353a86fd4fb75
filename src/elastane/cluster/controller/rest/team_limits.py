"""Limits of a team: jobs, stored bytes, claims, notification targets and tokens.

Each check runs in the transaction that adds something. Writing transactions run one after the other, so
concurrent requests cannot exceed a limit together.
"""

from http import HTTPStatus

from sqlalchemy import Connection

from elastane.cluster.controller.rest.problems import Refusal
from elastane.cluster.controller.store import (
    claim_lists,
    code_rows,
    documents,
    jobs,
    notification_rows,
    tokens,
)
from elastane.cluster.controller.store.columns import encode_json
from elastane.cluster.nouns.config import Limits, Team
from elastane.cluster.nouns.jobs import JobSpec
from elastane.common.durations import DAY_S

MIB = 2**20
SMALL_CHANGE_BYTES = 1024
CLAIMS_BYTES = 64 * MIB
"""Thousands of runs fit: a claim has some hundred bytes, and only a death or a new term needs one."""
MOST_TARGETS = 20
"""Notification targets of a team."""
CODE_BYTES = 2048 * MIB
"""The archives of a usual project have less than one MiB."""
MADE_A_DAY = 10
"""A team may make this many times its limit of valid tokens within a day: every token keeps a row."""


def read_limits(tx: Connection, team: str) -> Limits:
    """Return the limits of a team; the defaults, if it is not declared."""
    found = documents.find_document(tx, "teams", team) if team else None
    return found.value.limits if found and isinstance(found.value, Team) else Limits()


def check_jobs(tx: Connection, spec: JobSpec, user: str) -> None:
    """Check that the team has room for one more job."""
    limits, taken = read_limits(tx, spec.team), jobs.measure_team(tx, spec.team, user)
    means = "the job was not submitted; the others continue"
    if taken.jobs >= limits.jobs:
        raise _make_limit_refusal(
            f"team {spec.team} has {taken.jobs} of at most {limits.jobs} jobs that have not ended",
            means=means,
            free="cancel some, or wait until some end",
            raise_it=f"elastane team set {spec.team} --max-jobs N",
        )
    if taken.of_user >= limits.jobs_per_user:
        raise _make_limit_refusal(
            f"user {user} has {taken.of_user} of at most {limits.jobs_per_user} jobs in team {spec.team} "
            "that have not ended",
            means=means,
            free="cancel some, or wait until some end",
            raise_it=f"elastane team set {spec.team} --max-jobs-per-user N",
        )
    _check_room(spec.team, limits, taken.spec_bytes, _measure_spec(spec))


def check_growth(tx: Connection, before: JobSpec, after: JobSpec) -> None:
    """Check that the team has room for what a change adds; a small one, such as a pause, fits."""
    added_bytes = _measure_spec(after) - _measure_spec(before)
    if added_bytes > SMALL_CHANGE_BYTES:
        stored_bytes = jobs.measure_team(tx, after.team, "").spec_bytes
        _check_room(after.team, read_limits(tx, after.team), stored_bytes, added_bytes)


def _measure_spec(spec: JobSpec) -> int:
    return len(encode_json(spec).encode())


def _check_room(team: str, limits: Limits, stored: int, added: int) -> None:
    if stored + added > limits.stored_mib * MIB:
        raise _make_limit_refusal(
            f"the specs of team {team} have {stored / MIB:.1f} of at most {limits.stored_mib} MiB",
            means="nothing was changed; jobs that have ended count until the cluster forgets them",
            free="write smaller specs, or let ended jobs be forgotten (runPolicy.ttlSecondsAfterFinished)",
            raise_it=f"elastane team set {team} --max-stored-mib N",
        )


def check_claims(tx: Connection, team: str, added_bytes: int) -> None:
    """Check that the claim lists of a team have room for one more claim."""
    stored_bytes = claim_lists.measure_lists(tx, team)
    if stored_bytes + added_bytes > CLAIMS_BYTES:
        raise _make_limit_refusal(
            f"the claim lists of team {team} have {stored_bytes / MIB:.1f} of at most "
            f"{CLAIMS_BYTES // MIB} MiB",
            means="nothing was claimed; runs go on, but no membership can change by itself",
            free="delete the lists of runs that will not go on (elastane claims delete)",
            raise_it="",
        )


def check_code(tx: Connection, team: str, digest: str, added_bytes: int) -> None:
    """Check that a team may send this code. Code that it has sent before needs no room."""
    stored_bytes = code_rows.measure_code(tx, team)
    if not code_rows.has_code(tx, team, digest) and stored_bytes + added_bytes > CODE_BYTES:
        raise _make_limit_refusal(
            f"the code of team {team} has {stored_bytes / MIB:.1f} of at most {CODE_BYTES // MIB} MiB, and "
            f"this code {added_bytes / MIB:.1f} MiB",
            means="it was not kept; jobs that were submitted are not affected",
            free=f"leave out data in .elastaneignore, or wait: code is deleted "
            f"{code_rows.KEPT_S / DAY_S:.0f} days after the end of the last job that uses it",
            raise_it="",
        )


def check_targets(tx: Connection, team: str) -> None:
    """Check that the team may have one more notification target."""
    count = notification_rows.count_targets(tx, team)
    if count >= MOST_TARGETS:
        raise _make_limit_refusal(
            f"team {team} has {count} of at most {MOST_TARGETS} notification targets",
            means="no target was added",
            free="remove some (elastane notify list, elastane notify remove TARGET)",
            raise_it="",
        )


def check_tokens(tx: Connection, team: str, now_s: float) -> None:
    """Check that the team may have one more token. Tokens of no team have no limit: operators make them."""
    if not team:
        return
    most = read_limits(tx, team).tokens
    raise_it = f"elastane team set {team} --max-tokens N" if team != "*" else ""
    valid = tokens.count_valid_tokens(tx, team, now_s)
    if valid >= most:
        raise _make_limit_refusal(
            f"team {team} has {valid} of at most {most} valid tokens",
            means="no token was made",
            free="revoke some (elastane token list, elastane token revoke TOKEN)",
            raise_it=raise_it,
        )
    made = tokens.count_tokens_since(tx, team, now_s - DAY_S)
    if made >= MADE_A_DAY * most:
        raise _make_limit_refusal(
            f"{made} of at most {MADE_A_DAY * most} tokens of team {team} were made within a day",
            means="no token was made; the store keeps revoked tokens, because the audit log refers to them",
            free="use each token for longer",
            raise_it=raise_it,
        )


def _make_limit_refusal(what: str, *, means: str, free: str, raise_it: str) -> Refusal:
    do = f"{free}; an operator can raise the limit: {raise_it}" if raise_it else free
    return Refusal(HTTPStatus.CONFLICT, what, means=means, do=do)
