"""The account of the bytes that a job sends between sites, by the counters of its workers. Pure.

A worker counts what it has sent since it began, and a run repeats these counters. So a report that is lost,
repeated or late, another coordinator and a restart of the controller change no sum: only what a counter has
grown is added. Another attempt has other workers, which begin at zero.
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from elastane.cluster.nouns.config import EgressPrices
from elastane.cluster.nouns.engine import Crossing
from elastane.cluster.nouns.usage import SentBytes
from elastane.common.bodies import AnswerBody
from elastane.common.bounds import Amount, Count, Moment, Position

MOST_ADDED_BYTES = 10**15
"""A report adds at most this much. A run may write anything, and the cost must fit into a record."""

MOST_COUNTERS = 4096
"""The most counters that an account keeps; those of the workers that began last stay."""

INTERVAL_S = 600.0
"""What was sent is stored as usage at least this often: within an interval no time is known."""


class EgressAccount(AnswerBody, frozen=True, kw_only=True, omit_defaults=True):
    """The bytes that a job has sent between sites.

    Args:
        attempt: the one of the counters.
        counters: the bytes that each worker has sent so far, by ``WORKER SOURCE>TARGET``.
        sent: the open interval: what was sent and is not stored as usage yet.
        from_s: its begin, in seconds since 1970.
        until_s: when something was added to it last.
        spent: the cost of all bytes so far; a part of the job's ``spent``.
    """

    attempt: Count = 0
    counters: dict[str, Position] = msgspec.field(default_factory=dict)
    sent: tuple[SentBytes, ...] = ()
    from_s: Moment = 0.0
    until_s: Moment = 0.0
    spent: Amount = 0.0


class EgressInterval(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes between two sites, at one price of 10^9 of them, between two times, which may be equal."""

    source: str
    target: str
    sent_bytes: int
    price: float
    from_s: float
    until_s: float

    def clip(self, from_s: float, until_s: float) -> float:
        """Return how much of it lies after one time and not after another one, from 0 to 1."""
        if self.until_s <= self.from_s:
            return float(from_s < self.from_s <= until_s)
        common_s = min(self.until_s, until_s) - max(self.from_s, from_s)
        return max(0.0, common_s) / (self.until_s - self.from_s)


def count_egress(
    account: EgressAccount | None,
    crossings: Iterable[Crossing],
    attempt: int,
    *,
    sites: Collection[str],
    prices: Iterable[EgressPrices],
    now_s: float,
) -> EgressAccount | None:
    """Return the account after a report of the workers of an attempt.

    Without a readable account the counters are only noted: what they count may have been paid for.

    Args:
        account: None: it cannot be read.
        sites: those of the job; what a run says of others does not count.
        prices: as declared now.
    """
    known = [
        crossing
        for crossing in crossings
        if crossing.source != crossing.target and {crossing.source, crossing.target} <= {*sites}
    ]
    if not known or (account is not None and attempt < account.attempt):
        return account
    before = account.counters if account is not None and account.attempt == attempt else {}
    counters, added = _add_crossings(before, known)
    if account is None:
        return EgressAccount(attempt=attempt, counters=counters)
    if not added:
        return account
    if not account.sent or now_s >= account.from_s + INTERVAL_S:
        account = msgspec.structs.replace(account, sent=(), from_s=max(now_s, account.until_s))
    found = {each.name: each for each in prices}
    new = tuple(
        SentBytes(
            source=source,
            target=target,
            sent_bytes=more,
            price=found[source].find_price(target) if source in found else 0.0,
        )
        for (source, target), more in sorted(added.items())
    )
    return msgspec.structs.replace(
        account,
        attempt=attempt,
        counters=counters,
        sent=_add_up((*account.sent, *new)),
        until_s=max(now_s, account.from_s),
        spent=account.spent + sum(entry.cost for entry in new),
    )


def _add_crossings(
    before: Mapping[str, int], crossings: Iterable[Crossing]
) -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    """Return the counters after a report, and how many bytes it adds to each pair of sites."""
    counters, added, left = dict(before), dict[tuple[str, str], int](), MOST_ADDED_BYTES
    for crossing in crossings:
        name = f"{crossing.worker} {crossing.source}>{crossing.target}"
        more = min(left, crossing.sent_bytes - counters.get(name, 0))
        if more > 0:
            # A worker that reports less than before gets nothing back.
            counters[name] = crossing.sent_bytes
            pair = crossing.source, crossing.target
            added[pair] = added.get(pair, 0) + more
            left -= more
    if len(counters) > MOST_COUNTERS:
        # Workers are numbered as they begin.
        newest = sorted(counters, key=lambda name: int(name.split()[0]))[-MOST_COUNTERS:]
        counters = {name: counters[name] for name in newest}
    return counters, added


def _add_up(sent: Iterable[SentBytes]) -> tuple[SentBytes, ...]:
    """Return one entry for each pair of sites and price."""
    found: dict[tuple[str, str, float], int] = {}
    for entry in sent:
        key = entry.source, entry.target, entry.price
        found[key] = found.get(key, 0) + entry.sent_bytes
    return tuple(
        SentBytes(source=source, target=target, sent_bytes=sent_bytes, price=price)
        for (source, target, price), sent_bytes in found.items()
    )


def list_closed_egress(
    before: EgressAccount | None, after: EgressAccount | None
) -> tuple[EgressInterval, ...]:
    """Return the usage of an interval that is open before a change and closed after it; empty: none is."""
    if before is None or after is None or (after.sent and after.from_s == before.from_s):
        return ()
    return list_egress(before)


def list_egress(account: EgressAccount) -> tuple[EgressInterval, ...]:
    """Return the usage of the open interval so far."""
    return tuple(
        EgressInterval(
            source=entry.source,
            target=entry.target,
            sent_bytes=entry.sent_bytes,
            price=entry.price,
            from_s=account.from_s,
            until_s=account.until_s,
        )
        for entry in account.sent
    )
