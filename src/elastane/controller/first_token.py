"""The token with which everything begins."""

from sqlalchemy import Connection

from elastane.api.wire import NewToken
from elastane.controller.access.secrets import digest_of, new_id, new_secret
from elastane.controller.store import tokens


def first_token(tx: Connection, user: str, now_s: float) -> str | None:
    """An operator's secret for a store that has no operator yet; None: it has one.

    To be told within this transaction: one that was stored and not told would lock everybody out, one that
    was told and not stored is followed by another.
    """
    if tokens.operators(tx, now_s):
        return None
    secret = new_secret()
    new = NewToken(user=user, role="operator", note="made at the first start")
    tokens.add(tx, new_id(), digest_of(secret), new, now_s)
    return secret
