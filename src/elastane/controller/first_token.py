"""The token with which everything begins."""

from elastane.api.wire import NewToken
from elastane.controller.access.secrets import digest_of, new_id, new_secret
from elastane.controller.store import tokens
from elastane.controller.store.database import Store


def first_token(store: Store, user: str, now_s: float) -> str | None:
    """An operator's secret for a store that has no operator yet; None: it has one. Told only this once."""
    with store.writing() as tx:
        if tokens.operators(tx, now_s):
            return None
        secret = new_secret()
        new = NewToken(user=user, role="operator", note="made at the first start")
        tokens.add(tx, new_id(), digest_of(secret), new, now_s)
        return secret
