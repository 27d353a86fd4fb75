"""The token with which everything begins."""

from sqlalchemy import Connection

from elastane.api.tokens import NewToken
from elastane.controller.access.secrets import compute_digest, new_id, new_secret
from elastane.controller.store import tokens


def make_first_token(tx: Connection, user: str, now_s: float, *, another: bool = False) -> str | None:
    """An operator's secret for a store that has no operator yet, or if ``another`` is wanted; None: neither.

    To be told within this transaction: one that was stored and not told would lock everybody out, one that
    was told and not stored is followed by another.
    """
    first = not tokens.count_operators(tx, now_s)
    if not first and not another:
        return None
    secret = new_secret()
    new = NewToken(user=user, role="operator", note="made at the first start" if first else "made at a start")
    tokens.insert_token(tx, new_id(), compute_digest(secret), new, now_s)
    return secret
