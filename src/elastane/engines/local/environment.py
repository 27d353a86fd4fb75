"""What a job's processes find in their environment: what the job names, and what a process needs to start."""

from collections.abc import Mapping

NEEDED = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
    "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
)  # fmt: skip
"""Where programs, libraries, devices, certificates and files are, and how text is written. Nothing secret."""


def environment_of(wishes: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job.

    Args:
        wishes: variables the job names; they win.
        own: this process's environment, of which only `NEEDED` is passed on.
    """
    return {name: own[name] for name in NEEDED if name in own} | dict(wishes)
