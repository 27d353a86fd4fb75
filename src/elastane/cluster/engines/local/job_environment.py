"""The environment of a job's processes: the job's variables, and those that every process needs."""

from collections.abc import Mapping

from elastane.cluster.engines.local.accounts import Account

NEEDED = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
    "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
)  # fmt: skip
"""Variables for programs, libraries, devices, certificates, files and text encoding; none is secret."""

PERSONAL = frozenset({"HOME", "USER", "LOGNAME", "SHELL", "TMPDIR"})
"""Those of `NEEDED` that are personal; a folder of temporary files is closed to other users."""


def build_job_environment(
    variables: Mapping[str, str], inherited: Mapping[str, str], account: Account | None = None
) -> dict[str, str]:
    """Return the environment of a job.

    Args:
        variables: the job's variables; they take precedence.
        inherited: this process's environment; only `NEEDED` is passed on.
        account: the system user that the job runs as; None: this process's user.
    """
    passed = {name: inherited[name] for name in NEEDED if name in inherited}
    if account is None:
        return passed | dict(variables)
    others = {name: value for name, value in passed.items() if name not in PERSONAL}
    return others | _make_login_variables(account) | dict(variables)


def _make_login_variables(account: Account) -> dict[str, str]:
    """Return the variables that a login would set for this user."""
    return {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": account.shell}
