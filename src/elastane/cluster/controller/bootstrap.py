"""The first operator's token of a store."""

from sqlalchemy import Connection

from elastane.cluster.controller.access.secrets import compute_digest, generate_secret, generate_token_id
from elastane.cluster.controller.store import tokens
from elastane.cluster.nouns.tokens import NewToken


def make_first_token(tx: Connection, user: str, now_s: float, *, another: bool = False) -> str | None:
    """Make an operator's token, and return its secret.

    Show the secret before this transaction ends. If it were stored but not shown, the cluster would have no
    usable token. If it is shown but not stored, the next start makes another one.

    Args:
        tx: a transaction that writes.
        user: of the token.
        now_s: the time.
        another: make a token even if the store has a valid one of an operator.

    Returns:
        The secret; None: the store has an operator, and no other is wanted.
    """
    first = not tokens.count_operators(tx, now_s)
    if not first and not another:
        return None
    secret = generate_secret()
    new = NewToken(user=user, role="operator", note="made at the first start" if first else "made at a start")
    tokens.insert_token(tx, generate_token_id(), compute_digest(secret), new, now_s)
    return secret
