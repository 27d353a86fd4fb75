"""Stored tokens, with the digests of their secrets instead of the secrets."""

import hashlib
import secrets
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, func, insert, select, update

from elastane.cluster.controller.store.tables import tokens
from elastane.cluster.nouns.tokens import NewToken, Token

PREFIX = "ela_"
"""Prefix of every secret, so that a leaked one can be found in logs and repositories."""


def generate_secret() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def generate_token_id() -> str:
    """Generate the id of a token, which is not a secret."""
    return "tok-" + secrets.token_hex(6)


def compute_digest(secret: str) -> bytes:
    """Return the SHA-256 of a secret, 32 bytes. A slow hash is not needed for 256 random bits."""
    return hashlib.sha256(secret.encode()).digest()


def insert_token(tx: Connection, id_: str, digest: bytes, new: NewToken, now_s: float) -> Token:
    """Store a token by the SHA-256 of its secret, 32 bytes."""
    row = tx.execute(
        insert(tokens)
        .values(
            id=id_,
            digest=digest,
            user=new.user,
            role=new.role,
            team=new.team,
            note=new.note,
            created_s=now_s,
            expires_s=None if new.valid_s is None else now_s + new.valid_s,
        )
        .returning(tokens)
    ).one()
    return _decode_token(row)


def find_token_by_digest(tx: Connection, digest: bytes, now_s: float) -> Token | None:
    """Return the token with this digest, if it is valid at this time."""
    row = tx.execute(select(tokens).where(tokens.c.digest == digest)).one_or_none()
    if row is None or row.revoked_s is not None or (row.expires_s is not None and row.expires_s <= now_s):
        return None
    return _decode_token(row)


def is_token_valid(tx: Connection, id_: str, now_s: float) -> bool:
    query = select(tokens.c.id).where(tokens.c.id == id_, *_list_validity_conditions(now_s))
    return tx.execute(query).one_or_none() is not None


def find_token(tx: Connection, id_: str) -> Token | None:
    row = tx.execute(select(tokens).where(tokens.c.id == id_)).one_or_none()
    return _decode_token(row) if row else None


def list_tokens(tx: Connection, teams: tuple[str, ...] | None, *, of_none: bool = True) -> tuple[Token, ...]:
    """Return tokens, oldest first: of teams, or of all, perhaps also of no team."""
    query = select(tokens).order_by(tokens.c.created_s, tokens.c.id)
    if teams is not None:
        query = query.where(tokens.c.team.in_(teams))
    elif not of_none:
        query = query.where(tokens.c.team != "")
    return tuple(_decode_token(row) for row in tx.execute(query))


def revoke_token(tx: Connection, id_: str, now_s: float) -> None:
    """Revoke a token. A token that was revoked before stays as it is."""
    tx.execute(
        update(tokens).where(tokens.c.id == id_).values(revoked_s=func.coalesce(tokens.c.revoked_s, now_s))
    )


def count_operators(tx: Connection, now_s: float) -> int:
    """Return the number of valid tokens of operators."""
    query = select(func.count()).where(tokens.c.role == "operator", *_list_validity_conditions(now_s))
    return tx.execute(query).scalar_one()


def list_team_tokens(tx: Connection, team: str, now_s: float) -> tuple[str, ...]:
    """Return the ids of the valid tokens of exactly this team, not of every team; oldest first."""
    query = select(tokens.c.id).where(tokens.c.team == team, *_list_validity_conditions(now_s))
    return tuple(tx.execute(query.order_by(tokens.c.created_s, tokens.c.id)).scalars())


def count_valid_tokens(tx: Connection, team: str, now_s: float) -> int:
    query = select(func.count()).where(tokens.c.team == team, *_list_validity_conditions(now_s))
    return tx.execute(query).scalar_one()


def count_tokens_since(tx: Connection, team: str, since_s: float) -> int:
    """Return the number of tokens of this team that were made since then, valid or not."""
    query = select(func.count()).where(tokens.c.team == team, tokens.c.created_s > since_s)
    return tx.execute(query).scalar_one()


def _list_validity_conditions(now_s: float) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Build the conditions of a valid token: it is neither revoked nor expired."""
    return tokens.c.revoked_s.is_(None), tokens.c.expires_s.is_(None) | (tokens.c.expires_s > now_s)


def _decode_token(row: Row[Any]) -> Token:
    return Token(**{name: getattr(row, name) for name in Token.__struct_fields__})


def make_first_token(tx: Connection, user: str, now_s: float, *, another: bool = False) -> str | None:
    """Make an operator's token, and return its secret.

    Show the secret before this transaction ends. If it were stored but not shown, the cluster would have no
    usable token. If it is shown but not stored, the next start makes another one.

    Args:
        another: make a token even if the store has a valid one of an operator.

    Returns:
        The secret; None: the store has an operator, and no other is wanted.
    """
    first = not count_operators(tx, now_s)
    if not first and not another:
        return None
    secret = generate_secret()
    new = NewToken(user=user, role="operator", note="made at the first start" if first else "made at a start")
    insert_token(tx, generate_token_id(), compute_digest(secret), new, now_s)
    return secret
