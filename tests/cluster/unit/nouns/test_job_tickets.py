"""Job tickets: whole ones are read back, and all others are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.cluster.nouns.job_tickets import (
    BEGIN,
    JobTicket,
    decode_job_ticket,
    encode_job_ticket,
    is_job_ticket,
)
from elastane.common.errors import BadInput
from elastane.run.machines.tickets.tickets import is_ticket

TICKET = JobTicket("https://10.0.0.5:7425", "c0a1b2-7", bytes(range(16)), "-----BEGIN CERTIFICATE-----\n")
WORD = encode_job_ticket(TICKET)

tickets = st.builds(
    JobTicket,
    url=st.from_regex(r"https?://[a-z0-9.]{1,40}:[0-9]{1,5}", fullmatch=True),
    agent=st.from_regex(r"[a-z][a-z0-9]{0,15}-[0-9]{1,15}", fullmatch=True),
    key=st.binary(min_size=16, max_size=16),
    certificate=st.text(st.characters(codec="ascii"), max_size=2000),
)


@given(tickets)
def test_a_ticket_is_one_line_and_read_back(ticket):
    word = encode_job_ticket(ticket)
    assert word.isascii()
    assert len(word.split()) == 1
    assert decode_job_ticket(f"{word}\n") == ticket


@given(st.integers(0, len(WORD) - 1), st.sampled_from("aZ0-_"))
def test_a_damaged_ticket_is_refused(place, character):
    damaged = WORD[:place] + character + WORD[place + 1 :]
    if damaged == WORD or not is_job_ticket(damaged):
        return
    with pytest.raises(BadInput, match="the job ticket is damaged"):
        decode_job_ticket(damaged)


@pytest.mark.parametrize("length", [len(BEGIN), len(BEGIN) + 10, len(WORD) - 1])
def test_a_part_of_a_ticket_is_refused(length):
    with pytest.raises(BadInput, match="the job ticket is damaged"):
        decode_job_ticket(WORD[:length])


def test_a_job_ticket_is_told_from_the_ticket_of_a_run():
    assert is_job_ticket(WORD)
    assert not is_job_ticket("elastane1-" + "a" * 30)
    # Commands for runs take it for a ticket, and say that its form is not theirs.
    assert is_ticket(WORD)


@pytest.mark.parametrize("url", ["ftp://10.0.0.5", "https://", "https://a b", "file:///etc/passwd"])
def test_an_address_that_is_none_is_refused(url):
    word = encode_job_ticket(JobTicket(url, TICKET.agent, TICKET.key))
    with pytest.raises(BadInput, match="the job ticket is damaged"):
        decode_job_ticket(word)
