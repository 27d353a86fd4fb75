"""Credentials in URLs: they are refused where Elastane would store them, and hidden where it shows the URL.

A password in the URL of a storage would be in ``run.json``, in tables and in errors, which others may read.
"""

import re

from elastane.common.errors import BadInput

HIDDEN = "***"
# `user:password@`, also in a chain of file systems such as `simplecache::s3://...`. A user alone has no
# password, but may be a token over HTTP.
_PASSWORD = re.compile(r"(?:(?<=http://)|(?<=https://))[^/?#\s@]+@|(?<=://)[^/?#\s:@]*:[^/?#\s]*@")
_PARAMETER = re.compile(
    r"(?<=[?&;])([^=&;#\s]*(?:key|secret|token|password|passwd|sig|signature|credential|auth)[^=&;#\s]*)=[^&;#\s]+",
    re.IGNORECASE,
)


def hide_credentials(url: str) -> str:
    """Return a URL, or a text with URLs, without its passwords, and with hidden keys."""
    return _PARAMETER.sub(rf"\1={HIDDEN}", _PASSWORD.sub("", url))


def check_no_credentials(url: str, name: str = "the URL of a storage") -> None:
    """Refuse a URL with a password or a key.

    Args:
        name: of the option or field, for the error.

    Raises:
        BadInput: it has one; the error does not show it.
    """
    if (shown := hide_credentials(url)) != url:
        raise BadInput(
            f"{name} has credentials: {shown}",
            means="they would be stored and printed with the URL, for others to read",
            do="leave them out; file systems read them from their environment or files, such as "
            "AWS_ACCESS_KEY_ID or ~/.aws/credentials",
        )
