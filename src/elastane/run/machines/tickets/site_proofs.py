"""The proof of a machine that it belongs to a site: the ticket with which it has joined.

A site that has a ticket is closed: only machines with one of its tickets can name it. Without a ticket of the
site, any machine that shares the run directory may name it. The first machine needs no proof.
"""

from collections.abc import Collection, Iterable

from elastane.run.machines.tickets.ticket_files import UNKNOWN, TicketStatus
from elastane.run.machines.tickets.tickets import find_ticket_fault, matches_key, read_presented
from elastane.run.nouns.membership import SiteName


def find_site_fault(
    tickets: Iterable[TicketStatus], presented: str, named: Collection[SiteName], now: float
) -> str:
    """Return why a machine may not take part at the sites that it names; empty: it may.

    Args:
        tickets: those of sites, also revoked and expired ones.
        presented: the machine's ticket, see `present_ticket`; empty: it has none of a site.
        named: the sites that it names.
        now: as a Unix time in seconds.
    """
    known = {ticket.id: ticket for ticket in tickets}
    if not presented:
        closed = {site for ticket in known.values() for site in ticket.record.sites}
        return _describe_unproven(sorted(closed.intersection(named)))
    ticket_id, key = read_presented(presented) or ("", b"")
    ticket = known.get(ticket_id)
    if ticket is None or not matches_key(ticket.record, key):
        return UNKNOWN
    # Each use has admitted one machine, and this may be the last one.
    if why := find_ticket_fault(ticket.record, used=0, revoked=ticket.revoked, now=now):
        return why
    foreign = sorted(set(named).difference(ticket.record.sites))
    return describe_foreign_ticket(ticket.record.sites, foreign) if foreign else ""


def describe_foreign_ticket(sites: Iterable[SiteName], foreign: Iterable[SiteName]) -> str:
    """Say that a ticket is not one of the sites that a machine names."""
    return f"the ticket is one of site {', '.join(sites)}, and the machine names {', '.join(foreign)}"


def _describe_unproven(sites: Collection[SiteName]) -> str:
    if not sites:
        return ""
    return f"site {', '.join(sites)} has a ticket, and the machine has not joined with one of that site"
