"""A ticket is one word; the run decides by its record whether it admits."""

import random
import threading
import time

import pytest

from elastane.common.errors import BadInput
from elastane.run.machines.tickets.ticket_files import (
    UNKNOWN,
    find_tickets,
    issue_ticket,
    list_tickets,
    open_tickets,
    revoke_tickets,
    use_ticket,
)
from elastane.run.machines.tickets.tickets import (
    BEGIN,
    create_ticket,
    decode_ticket,
    encode_ticket,
    explain_part_of_ticket,
    is_ticket,
    read_authorization,
    write_authorization,
)
from elastane.run.nouns.rundir import RunDir

FINGERPRINT = bytes(range(32))
ADDRESSES = ("10.0.0.5", 4711), ("fd00::5", 4712)


@pytest.fixture
def run_dir(tmp_path):
    found = RunDir(tmp_path)
    open_tickets(found)
    return found


def use(run_dir, ticket):
    return use_ticket(run_dir, ticket.id, ticket.key)


def test_a_ticket_is_one_word_that_a_shell_leaves_alone() -> None:
    ticket, _ = create_ticket(FINGERPRINT, ADDRESSES)
    word = encode_ticket(ticket)
    assert word.replace("-", "").replace("_", "").isalnum()
    assert is_ticket(word)
    assert decode_ticket(f" {word}\n") == ticket


@pytest.mark.parametrize("text", ["demo", "elastane1-demo", "elastane", "runs/elastane1", ""])
def test_names_of_runs_are_no_tickets(text) -> None:
    assert not is_ticket(text)


@pytest.mark.parametrize("length", [len(BEGIN), len(BEGIN) + 1, len(BEGIN) + 23])
def test_a_ticket_that_was_cut_is_known_by_its_beginning(length) -> None:
    cut = encode_ticket(create_ticket(FINGERPRINT, ADDRESSES)[0])[:length]
    assert not is_ticket(cut)
    error = explain_part_of_ticket(cut)
    assert "as a ticket it is incomplete" in error.what
    assert "copy the whole word" in error.do


def test_of_a_whole_line_with_a_ticket_only_the_ticket_is_to_be_passed() -> None:
    word = encode_ticket(create_ticket(FINGERPRINT, ADDRESSES)[0])
    for text in (f"elastane join {word}", f"join {word} --slots 4", f"elastane join {word[:20]}"):
        error = explain_part_of_ticket(text)
        assert "is more than a ticket" in error.what
        assert error.do == "pass only that word"
        # Its key is secret.
        assert word not in str(error)


@pytest.mark.parametrize("text", ["demo", "elastane", "elastane join demo", "/shared/elastane1-x", ""])
def test_other_texts_have_no_part_of_a_ticket(text) -> None:
    assert explain_part_of_ticket(text) is None


def test_a_damaged_ticket_is_refused_in_words() -> None:
    word = encode_ticket(create_ticket(FINGERPRINT, ADDRESSES)[0])
    chance = random.Random(1)
    for _ in range(300):
        place = chance.randrange(len(BEGIN), len(word))
        other = chance.choice("ABCxyz019-_+/= é\0")
        damaged = chance.choice((word[:place], word[:place] + other + word[place + 1 :], word + other * 3))
        if damaged.strip() != word:
            with pytest.raises(BadInput, match="the ticket is damaged"):
                decode_ticket(damaged)
    with pytest.raises(BadInput, match="too long"):
        decode_ticket(word + "A" * 4096)


def test_a_ticket_of_another_form_names_the_reason() -> None:
    word = encode_ticket(create_ticket(FINGERPRINT, ADDRESSES)[0]).replace(BEGIN, "elastane2-")
    assert is_ticket(word)
    with pytest.raises(BadInput, match="a form that this version of Elastane does not know"):
        decode_ticket(word)


def test_a_header_presents_a_ticket() -> None:
    ticket, _ = create_ticket(FINGERPRINT, ADDRESSES)
    assert read_authorization(write_authorization(ticket)) == (ticket.id, ticket.key)
    for header in ("", "Ticket", "Ticket ../../x.00", f"Bearer {ticket.id}.{ticket.key.hex()}", "Ticket é.é"):
        assert read_authorization(header) is None


def test_the_run_keeps_no_key(run_dir) -> None:
    ticket = issue_ticket(run_dir, FINGERPRINT, ADDRESSES)
    (path,) = find_tickets(run_dir).iterdir()
    assert ticket.key.hex() not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    assert use(run_dir, ticket) == ""
    assert use_ticket(run_dir, ticket.id, b"\0" * 16) == UNKNOWN
    assert use_ticket(run_dir, "00000000", ticket.key) == UNKNOWN


def test_a_ticket_without_limits_admits_again_and_again(run_dir) -> None:
    ticket = issue_ticket(run_dir, FINGERPRINT, ADDRESSES)
    assert [use(run_dir, ticket) for _ in range(20)] == [""] * 20
    assert len(list(find_tickets(run_dir).iterdir())) == 1


def test_a_ticket_expires_by_the_clock_of_the_run(run_dir, monkeypatch) -> None:
    ticket = issue_ticket(run_dir, FINGERPRINT, ADDRESSES, valid_s=60)
    assert use(run_dir, ticket) == ""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 90)
    assert use(run_dir, ticket).startswith("the ticket expired")


def test_a_revoked_ticket_admits_no_one(run_dir) -> None:
    ticket = issue_ticket(run_dir, FINGERPRINT, ADDRESSES, uses=5)
    revoke_tickets(run_dir, ticket.id)
    assert use(run_dir, ticket) == "the ticket was revoked"
    for unknown in ("00000000", "../secret", ""):
        with pytest.raises(BadInput, match="the run has no ticket"):
            revoke_tickets(run_dir, unknown)


@pytest.mark.parametrize("uses", [1, 3])
def test_several_machines_never_use_a_ticket_too_often(run_dir, uses) -> None:
    ticket = issue_ticket(run_dir, FINGERPRINT, ADDRESSES, uses=uses)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(use(run_dir, ticket))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.count("") == uses
    assert set(answers) == {"", f"the ticket was valid for use {_count(uses)}, and is used up"}
    assert [found.used for found in list_tickets(run_dir)] == [uses]


def _count(uses: int) -> str:
    return "once" if uses == 1 else f"{uses} times"


def test_a_damaged_record_hides_no_other_ticket(run_dir) -> None:
    ticket = issue_ticket(run_dir, FINGERPRINT, ADDRESSES)
    (find_tickets(run_dir) / "0badbeef.json").write_text("{")
    (find_tickets(run_dir) / "other.json").write_text("{}")
    (find_tickets(run_dir) / "deadbeef.json").symlink_to("/dev/zero")
    assert [found.id for found in list_tickets(run_dir)] == [ticket.id]
    assert use_ticket(run_dir, "0badbeef", ticket.key) == UNKNOWN


def test_a_new_attempt_forgets_the_tickets_of_the_last(run_dir) -> None:
    ticket = issue_ticket(run_dir, FINGERPRINT, ADDRESSES)
    open_tickets(run_dir)
    assert list_tickets(run_dir) == ()
    assert use(run_dir, ticket) == UNKNOWN
