"""The accounts of a job: what it pays for devices and bytes, and how long it has held devices. Pure."""

from collections.abc import Iterable

import msgspec

from elastane.cluster.controller.jobs.egress_account import count_egress
from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.nouns.config import EgressPrices
from elastane.cluster.nouns.engine import Observation
from elastane.cluster.nouns.usage import Terms, Use


class UsageInterval(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one pool that a job has used at one price of a device for an hour, between two times."""

    pool: str
    terms: Terms
    devices: int
    price: float
    from_s: float
    until_s: float

    def clip(self, from_s: float, until_s: float) -> tuple[float, float]:
        """Return device-seconds and cost of the part between two times."""
        seconds = max(0.0, min(self.until_s, until_s) - max(self.from_s, from_s))
        device_s = self.devices * seconds
        return device_s, device_s * self.price / 3600


def compute_cost(uses: tuple[Use, ...], seconds: float) -> float:
    """Return the cost of these devices, in the currency of their prices, which are by the hour."""
    return sum(use.devices * use.price for use in uses) * max(0.0, seconds) / 3600


def close_intervals(
    uses: tuple[Use, ...] | None, since_s: float | None, until_s: float
) -> tuple[UsageInterval, ...]:
    """Return the usage from ``since_s`` to ``until_s``; empty if uses or ``since_s`` cannot be read."""
    if since_s is None or until_s <= since_s:
        return ()
    return tuple(
        UsageInterval(
            pool=use.pool,
            terms=use.terms,
            devices=use.devices,
            price=use.price,
            from_s=since_s,
            until_s=until_s,
        )
        for use in uses or ()
        if use.devices
    )


def charge(job: StoredJob, uses: tuple[Use, ...], now_s: float) -> StoredJob:
    """Return the job, which uses these devices from now on and has paid for its earlier ones.

    Earlier uses that cannot be read cost nothing.
    """
    job = _close_egress(job)
    if job.uses == uses:
        return job
    since_s = now_s if job.using_since_s is None else max(now_s, job.using_since_s)
    active_s = job.active_s
    if job.active_since_s is not None and not uses:
        active_s += since_s - job.active_since_s
    return msgspec.structs.replace(
        job,
        uses=uses,
        using_since_s=since_s,
        spent=compute_spending(job, now_s),
        active_s=active_s,
        active_since_s=(since_s if job.active_since_s is None else job.active_since_s) if uses else None,
    )


def compute_spending(job: StoredJob, now_s: float) -> float:
    """Return the cost of the job until now."""
    since_s = now_s if job.using_since_s is None else job.using_since_s
    return job.spent + compute_cost(job.uses or (), now_s - since_s)


def _close_egress(job: StoredJob) -> StoredJob:
    """Return the job with no open interval of bytes between sites; its row stores the closed one as usage."""
    if job.egress is None or not job.egress.sent:
        return job
    return msgspec.structs.replace(job, egress=msgspec.structs.replace(job.egress, sent=()))


def charge_egress(
    job: StoredJob, seen: Observation, prices: Iterable[EgressPrices], now_s: float
) -> StoredJob:
    """Return the job, which has paid for the bytes between sites that its workers report."""
    if not seen.present:
        return job
    after = count_egress(
        job.egress,
        seen.crossings,
        seen.attempt,
        sites=job.spec.data.sites,
        prices=prices,
        now_s=now_s,
    )
    if after == job.egress:
        return job
    cost = after.spent - job.egress.spent if after is not None and job.egress is not None else 0.0
    return msgspec.structs.replace(job, egress=after, spent=job.spent + cost)
