"""The ticket of a site admits machines of this site, and nothing else; the name of the site revokes it."""

import time

import msgspec
import pytest

from elastane.common.errors import BadInput
from elastane.run.connections.endpoint import hash_secret
from elastane.run.machines.tickets.site_proofs import find_site_fault
from elastane.run.machines.tickets.ticket_files import (
    UNKNOWN,
    SiteTickets,
    find_tickets,
    list_tickets,
    open_tickets,
    revoke_tickets,
)
from elastane.run.machines.tickets.tickets import Ticket, decode_ticket, encode_ticket, present_ticket
from elastane.run.machines.visits.visits import find_shared_run, get_admission, visit_run
from tests.run.unit.machines.test_mirror import SECRET, Machine


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path / "home"))
    made = Machine(tmp_path / "elsewhere" / "study")
    with made.serve():
        yield made
    made.listening.close()


def issue(machine, *sites, **limits) -> Ticket:
    return decode_ticket(machine.write_ticket(sites=sites, **limits))


def find_fault(machine, presented: str, *named: str, later_s: float = 0.0) -> str:
    return find_site_fault(SiteTickets(machine.run_dir).read(), presented, named, time.time() + later_s)


def test_a_machine_proves_its_site_with_the_ticket(machine) -> None:
    ticket = present_ticket(issue(machine, "boston"))
    both = present_ticket(issue(machine, "boston", "kyoto"))
    assert find_fault(machine, ticket, "boston") == ""
    assert find_fault(machine, both, "boston", "kyoto") == ""
    assert find_fault(machine, ticket) == ""


@pytest.mark.parametrize("named", [("berlin",), ("berlin", "boston")])
def test_the_ticket_of_one_site_claims_no_other(machine, named) -> None:
    ticket = present_ticket(issue(machine, "boston"))
    assert find_fault(machine, ticket, *named) == (
        "the ticket is one of site boston, and the machine names berlin"
    )


def test_a_site_with_a_ticket_is_named_by_machines_with_one_only(machine) -> None:
    machine.write_ticket()
    assert find_fault(machine, "", "boston") == ""
    issue(machine, "boston")
    why = "site boston has a ticket, and the machine has not joined with one of that site"
    assert find_fault(machine, "", "berlin", "boston") == why
    assert find_fault(machine, "", "berlin") == ""
    revoke_tickets(machine.run_dir, "boston")
    assert find_fault(machine, "", "boston") == why


@pytest.mark.parametrize("forged", ["", "0" * 8, "../secret", "é.é", "." * 60])
def test_no_other_text_is_a_proof(machine, forged) -> None:
    ticket = issue(machine, "boston")
    other_key = present_ticket(msgspec.structs.replace(ticket, key=bytes(16)))
    general = present_ticket(decode_ticket(machine.write_ticket()))
    for text in (other_key, general, f"{ticket.id}.{forged}", forged or "x"):
        assert find_fault(machine, text, "boston") == UNKNOWN


def test_a_ticket_is_withdrawn_by_the_name_of_its_site(machine) -> None:
    first, second, other = (issue(machine, site) for site in ("boston", "boston", "kyoto"))
    assert sorted(revoke_tickets(machine.run_dir, "boston")) == sorted([first.id, second.id])
    assert find_fault(machine, present_ticket(second), "boston") == "the ticket was revoked"
    assert find_fault(machine, present_ticket(other), "kyoto") == ""
    with pytest.raises(BadInput, match="the run has no ticket berlin"):
        revoke_tickets(machine.run_dir, "berlin")


def test_a_used_up_ticket_still_proves_the_machine_that_has_used_it(machine) -> None:
    word = machine.write_ticket(sites=("boston",), uses=1, valid_s=60)
    assert find_shared_run(word) == (machine.run_dir, ("boston",))
    assert [ticket.used for ticket in list_tickets(machine.run_dir)] == [1]
    presented = present_ticket(decode_ticket(word))
    assert find_fault(machine, presented, "boston") == ""
    assert find_fault(machine, presented, "boston", later_s=90).startswith("the ticket expired")


def test_the_ticket_has_no_secret_for_a_machine_without_the_directory(machine, monkeypatch) -> None:
    word = machine.write_ticket(sites=("boston",))
    admission = get_admission(word)
    assert (admission.secret, admission.secret_digest) == ("", hash_secret(SECRET))
    assert SECRET not in msgspec.json.encode(admission).decode()
    assert visit_run(word) == machine.run_dir
    monkeypatch.setattr("elastane.run.machines.visits.visits._has_secret", lambda *_: False)
    with pytest.raises(BadInput, match="the ticket admits only machines of site boston"):
        visit_run(word)
    with pytest.raises(BadInput, match="does not share the directory of the run"):
        find_shared_run(word)


def test_the_digest_of_the_secret_does_not_get_the_secret(machine, tmp_path, monkeypatch) -> None:
    admission = get_admission(machine.write_ticket(sites=("boston",)))
    forger, shown = Machine(tmp_path / "forger" / "study"), list[str]()
    with forger.serve():
        # It knows the digest and the directory, and has another certificate.
        forged = msgspec.structs.replace(
            get_admission(forger.write_ticket()),
            directory=admission.directory,
            secret_digest=admission.secret_digest,
        )
        monkeypatch.setattr("elastane.run.machines.visits.visits.get_admission", lambda _: forged)
        monkeypatch.setattr("elastane.run.machines.visits.visits.present_secret", shown.append)
        with pytest.raises(BadInput, match="not one of the present attempt of the run"):
            find_shared_run("the ticket of the forger")
    forger.listening.close()
    assert shown == []


def test_a_new_attempt_keeps_the_tickets_of_sites_with_their_revocations(machine) -> None:
    kept, withdrawn = issue(machine, "boston"), issue(machine, "kyoto", uses=3)
    machine.write_ticket(uses=2)
    find_shared_run(encode_ticket(withdrawn))
    revoke_tickets(machine.run_dir, "kyoto")
    (find_tickets(machine.run_dir) / "mark-0").touch()
    before = SiteTickets(machine.run_dir).read()
    open_tickets(machine.run_dir)
    assert list_tickets(machine.run_dir) == tuple(sorted(before, key=lambda one: one.record.created))
    assert {ticket.id for ticket in before} == {kept.id, withdrawn.id}
    assert find_fault(machine, present_ticket(kept), "boston") == ""
    assert find_fault(machine, present_ticket(withdrawn), "kyoto") == "the ticket was revoked"


def test_a_file_system_that_is_away_withdraws_no_ticket(machine, monkeypatch) -> None:
    issue(machine, "boston")
    tickets = SiteTickets(machine.run_dir)

    def fail(*_) -> bytes:
        raise TimeoutError

    with monkeypatch.context() as context:
        context.setattr("elastane.common.confined_files.ConfinedDirectory.read", fail)
        with pytest.raises(OSError):  # noqa: PT011 - any error of a file system
            tickets.read()
    assert len(tickets.read()) == 1


def test_a_record_that_appears_after_its_name_is_read_again(machine) -> None:
    ticket, tickets = issue(machine, "boston"), SiteTickets(machine.run_dir)
    path = find_tickets(machine.run_dir) / f"{ticket.id}.json"
    record = path.read_bytes()
    path.write_bytes(b"")
    assert tickets.read() == ()
    path.write_bytes(record)
    assert [found.id for found in tickets.read()] == [ticket.id]
