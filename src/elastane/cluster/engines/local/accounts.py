"""The system users that jobs run as, and the environment of their processes."""

import os
import pwd
from collections.abc import Mapping

import msgspec

from elastane.cluster.nouns.run_as import RunAs
from elastane.common.errors import BadInput

NEEDED = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
    "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
)  # fmt: skip
"""Variables for programs, libraries, devices, certificates, files and text encoding; none is secret."""

PERSONAL = frozenset({"HOME", "USER", "LOGNAME", "SHELL", "TMPDIR"})
"""Those of `NEEDED` that are personal; a folder of temporary files is closed to other users."""


class Account(msgspec.Struct, frozen=True):
    """A system user, as the kernel and a login shell know it.

    Args:
        uid: never 0.
        gid: of its primary group.
        groups: ids of all its groups.
        home: its home directory, which may not exist.
    """

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str


def find_account(name: str) -> Account:
    """Return the system user of this name."""
    try:
        found = pwd.getpwnam(name)
    except (KeyError, ValueError):
        raise BadInput(
            f"this machine has no user {name}",
            means="jobs of that user cannot be started; other jobs are not affected",
            do=f"useradd --system --create-home {name}, or name another user: elastane up --run-as",
        ) from None
    if found.pw_uid == 0:
        raise BadInput(
            f"user {name} is root (uid 0)",
            means="its jobs could read every file of this machine",
            do="name a user without privileges: elastane up --run-as TEAM=USER",
        )
    groups = os.getgrouplist(name, found.pw_gid)
    return Account(name, found.pw_uid, found.pw_gid, tuple(groups), found.pw_dir, found.pw_shell)


def find_team_account(run_as: RunAs, team: str) -> Account | None:
    """Return the system user that runs the jobs of a team; None: the controller's own user."""
    name = run_as.find_user(team)
    if not name:
        return None
    if os.geteuid() != 0:
        raise BadInput(
            f"jobs of team {team} run as {name}, but this controller does not run as root",
            means="only root may start processes of another user",
            do="sudo elastane up",
        )
    return find_account(name)


def build_job_environment(
    variables: Mapping[str, str], inherited: Mapping[str, str], account: Account | None = None
) -> dict[str, str]:
    """Return the environment of a job: its variables, those of its account, and `NEEDED` inherited ones."""
    passed = {name: inherited[name] for name in NEEDED if name in inherited}
    if account is None:
        return passed | dict(variables)
    others = {name: value for name, value in passed.items() if name not in PERSONAL}
    return others | _make_login_variables(account) | dict(variables)


def _make_login_variables(account: Account) -> dict[str, str]:
    """Return the variables that a login would set for this user."""
    return {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": account.shell}
