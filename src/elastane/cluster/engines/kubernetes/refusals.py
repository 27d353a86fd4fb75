"""What the API server says if it does not do what it was asked for, in words. Pure."""

import msgspec

from elastane.cluster.nouns.agents import StartRefusal
from elastane.common.safe_text import fold_text
from elastane.common.untrusted_data import Decoder, Malformed

LONGEST_MESSAGE = 500
LARGEST_STATUS_BYTES = 64 << 10
UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT, GONE, TOO_MANY = 401, 403, 404, 409, 410, 429
FIRST_CLIENT_ERROR, FIRST_SERVER_ERROR = 400, 500
ALREADY_EXISTS = "AlreadyExists"
QUOTA = "exceeded quota"
TERMINATING = "because it is being terminated"
NO_QUOTA_YET = "status unknown for quota"


class ApiRefusal(msgspec.Struct, frozen=True):
    """An answer of the API server other than success.

    Args:
        code: the HTTP status.
        reason: a word of Kubernetes, such as ``AlreadyExists``; empty: none.
        message: a sentence of the server; empty: none.
    """

    code: int
    reason: str = ""
    message: str = ""

    @property
    def words(self) -> str:
        """The sentence of the server, or its number at least."""
        return self.message or f"the API server answers {self.code} {self.reason}".rstrip()

    @property
    def is_failure(self) -> bool:
        """Whether it says nothing about the request: the server failed, or does not know this client."""
        is_judged = FIRST_CLIENT_ERROR <= self.code < FIRST_SERVER_ERROR
        return not is_judged or self.code in (UNAUTHORIZED, TOO_MANY)


class _Status(msgspec.Struct, frozen=True):
    reason: str | None = None
    message: str | None = None
    code: int | None = None


_decode: Decoder[_Status] = Decoder(_Status, at_most_bytes=LARGEST_STATUS_BYTES)


def decode_refusal(code: int, content: bytes) -> ApiRefusal:
    """Return what an answer with a status other than success says.

    Args:
        code: the HTTP status; 0: that of the content, which is an error in a watch.
        content: a ``Status`` of Kubernetes, or anything else that a proxy may say.
    """
    try:
        status = _decode(content)
    except Malformed:
        return ApiRefusal(code or FIRST_SERVER_ERROR)
    return ApiRefusal(
        code or status.code or FIRST_SERVER_ERROR,
        fold_text(status.reason or "", LONGEST_MESSAGE),
        fold_text(status.message or "", LONGEST_MESSAGE),
    )


def judge_creation(refusal: ApiRefusal) -> StartRefusal:
    """Return why an agent was not started, and whether the same request would be refused again."""
    if refusal.code == UNAUTHORIZED:
        return StartRefusal(f"the API server does not know the credentials: {refusal.words}")
    if refusal.is_failure or refusal.code in (CONFLICT, GONE):
        return StartRefusal(f"the API server cannot start it now: {refusal.words}")
    if refusal.code == FORBIDDEN:
        if QUOTA in refusal.message:
            return StartRefusal(f"the quota of the namespace is reached: {refusal.words}")
        passes = TERMINATING in refusal.message or NO_QUOTA_YET in refusal.message
        return StartRefusal(f"the API server forbids it: {refusal.words}", for_ever=not passes)
    return StartRefusal(f"the API server refuses it: {refusal.words}", for_ever=True)
