"""``elastane ticket``: let machines and users take part in a run that is on other machines."""

import time
from typing import Annotated

import msgspec

from elastane.cli.command import AsJson, RunName, make_group, open_console, print_json
from elastane.cli.option_values import read_duration_s
from elastane.cli.options import argument, option
from elastane.cli.runs.requests import send_request
from elastane.cli.timestamps import format_minute
from elastane.common.errors import BadInput
from elastane.run.connections.endpoint import read_endpoint
from elastane.run.connections.run_certificate import compute_fingerprint
from elastane.run.machines.tickets.ticket_files import (
    TicketStatus,
    issue_ticket,
    list_tickets,
    revoke_tickets,
)
from elastane.run.machines.tickets.tickets import encode_ticket, find_ticket_fault
from elastane.run.machines.visits.mirror import is_mirror
from elastane.run.machines.visits.run_finder import find_run
from elastane.run.nouns.control import AskStatus
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.sites import parse_sites

HELP = """
Let machines and users take part in a run that began with --listen.

A ticket is one word. It says where the run is, and proves that its holder may
take part. Every command takes it in place of a run's name, on any machine that
reaches those of the run. elastane run prints one that is valid as long as its
attempt of the run.

  $ elastane ticket create demo --uses 1 --valid 2h
  $ elastane join elastane1-...                  [dim]on the other machine[/dim]
  $ elastane events elastane1-... -f             [dim]on any machine[/dim]
  $ elastane ticket list demo

The holder of a ticket can do everything with the run: use it like a password.
The ticket of a site admits only machines that share the directory of the run, as
this site. When it is revoked or expires, these machines leave the run.

  $ elastane ticket create study boston --valid 30d
  $ elastane ticket revoke study boston
"""


def create_run_ticket(
    run: RunName,
    site: Annotated[
        str,
        argument(
            "SITE",
            "Admit only machines of this site, such as boston, or of several, such as boston,kyoto.",
        ),
    ] = "",
    uses: Annotated[
        int | None,
        option("N", "The ticket admits N users, each on one machine. Default: without limit.", min=1),
    ] = None,
    valid: Annotated[
        str,
        option(
            "DURATION", "The ticket is valid for so long, such as 2h. Default: for this attempt of the run."
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Create a ticket for RUN and print it; it is shown only once.

    The command needs the directory of the run. From the first ticket of a site on,
    machines without one cannot join as this site, except the first machine.

    With --json, an object with the keys id and ticket.
    """
    sites = parse_sites(site) if site else ()
    valid_s = read_duration_s("--valid", valid) if valid else None
    run_dir = _find_shared(run)
    answer = send_request(run_dir, AskStatus())
    addresses = tuple((node.host, node.port) for node in answer.nodes if node.host)
    certificate = read_endpoint(run_dir).certificate
    if not certificate or not addresses:
        raise BadInput(
            f"the run {run} has no tickets",
            means="it was started without --listen, so nothing outside its machine reaches it",
            do="start it with elastane run --listen ADDRESS",
        )
    fingerprint = compute_fingerprint(certificate)
    ticket = issue_ticket(run_dir, fingerprint, addresses, uses=uses, valid_s=valid_s, sites=sites)
    word = encode_ticket(ticket)
    if as_json:
        print_json({"id": ticket.id, "ticket": word})
        return
    print(word)


def list_run_tickets(run: RunName, as_json: AsJson = False) -> None:
    """List the tickets of RUN: how often each was used, and until when it is valid.

    With --json, a list of objects with the keys id, record (key_digest, created,
    expires, uses, sites), used and revoked.
    """
    found = list_tickets(_find_shared(run))
    if as_json:
        print_json([msgspec.to_builtins(ticket) for ticket in found])
        return
    console = open_console()
    if not found:
        console.print("the run has no tickets")
        return
    from elastane.cli.tables import build_table, print_wide

    cells = [
        (
            ticket.id,
            ", ".join(ticket.record.sites),
            format_minute(ticket.record.created),
            "" if ticket.record.uses is None else f"{ticket.used} of {ticket.record.uses}",
            _describe_validity(ticket),
        )
        for ticket in found
    ]
    print_wide(console, build_table(("id", "site", "created", "used", "valid"), cells))


def _describe_validity(ticket: TicketStatus) -> str:
    record = ticket.record
    if why := find_ticket_fault(record, used=ticket.used, revoked=ticket.revoked, now=time.time()):
        return f"no: {why}"
    return "" if record.expires is None else f"until {format_minute(record.expires)}"


def revoke_run_ticket(
    run: RunName,
    ticket: Annotated[str, argument("ID", "The ticket's id, as elastane ticket list shows it, or a site.")],
    as_json: AsJson = False,
) -> None:
    """Revoke a ticket of RUN, or all tickets of a site: they admit no one from now on.

    Machines that have joined with a ticket of a site leave the run at the next
    commit. Users and machines that another ticket has admitted keep their access.
    """
    for revoked in revoke_tickets(_find_shared(run), ticket):
        open_console(as_json=as_json).print(f"ticket {revoked} is revoked", markup=False)
    if as_json:
        print_json({"ok": True, "id": ticket})


def _find_shared(run: str) -> RunDir:
    run_dir = find_run(run)
    if is_mirror(run_dir):
        raise BadInput(
            f"the directory of the run {run} is not on this machine",
            means="tickets are files in it",
            do="use elastane ticket on a machine of the run",
        )
    return run_dir


ticket = make_group(
    "ticket", HELP, {"create": create_run_ticket, "list": list_run_tickets, "revoke": revoke_run_ticket}
)
