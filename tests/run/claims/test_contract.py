"""What every place of a claim list must do, with several claimants, deaths, damage and outages."""

import random
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from elastane.common.errors import BadInput
from elastane.run.connections.endpoint import CoordinatorEndpoint
from elastane.run.machines.claims.claim_list import ClaimList
from elastane.run.machines.claims.history import find_newest_term, number_next_term
from elastane.run.machines.claims.place import ClaimsUnavailable, ClaimsUnusable
from elastane.run.machines.claims.records import (
    LARGEST_RECORD_BYTES,
    GenerationClaim,
    HeldSlot,
    Unreadable,
    make_nonce,
)
from tests.waiting import WAIT_S, wait_until

from .claimant import claim_until

# s3fs closes its sockets when the interpreter ends, not before.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


def test_the_first_claim_of_a_slot_holds_it_for_ever(kind, term):
    first, second = kind.open(), kind.open()
    assert first.read() == ()
    mine, yours = term(claimant="a:1"), term(claimant="b:2")
    assert first.claim(1, mine) == HeldSlot(1, mine)
    found = second.claim(1, yours)
    assert found == HeldSlot(1, mine)
    assert found.holds(mine)
    assert not found.holds(yours)
    assert first.claim(1, mine).holds(mine)
    assert second.claim(2, yours).holds(yours)
    assert first.read() == second.read() == (HeldSlot(1, mine), HeldSlot(2, yours))


def test_records_of_both_kinds_read_back_from_any_slot_on(kind, term):
    listed = kind.open()
    records = (
        term(endpoint=CoordinatorEndpoint(host="fe80::1", port=7)),
        GenerationClaim(number=9, term=1, members=tuple(range(4096)), nonce=make_nonce()),
        term(2),
    )
    for slot, record in enumerate(records, start=1):
        assert listed.claim(slot, record).holds(record)
    whole = tuple(HeldSlot(slot, record) for slot, record in enumerate(records, start=1))
    for first_slot in (1, 2, 3, 4, 5, 100):
        assert listed.read(first_slot) == whole[first_slot - 1 :]
        assert kind.open().read(first_slot) == whole[first_slot - 1 :]


def test_a_gap_is_refused(kind, term):
    listed = kind.open()
    listed.claim(1, term())
    with pytest.raises(BadInput, match="slot 2 is not held"):
        listed.claim(3, term())
    with pytest.raises(BadInput, match="numbered from 1"):
        listed.claim(0, term())
    assert len(kind.open().read()) == 1


def test_a_record_that_readers_would_refuse_is_not_written(kind, term):
    listed = kind.open()
    with pytest.raises(BadInput, match="claimant"):
        listed.claim(1, term(claimant="x" * 1000))
    with pytest.raises(BadInput, match="members"):
        listed.claim(1, GenerationClaim(number=1, term=1, members=tuple(range(9000)), nonce=make_nonce()))
    assert listed.read() == ()


def test_a_proof_that_a_list_is_writable_claims_nothing(kind, term):
    listed = kind.open()
    listed.prove_writable()
    assert kind.list_names() == []
    assert listed.claim(1, first := term()).holds(first)
    # A machine that joins proves it beside the claims of others.
    kind.open().prove_writable()
    assert listed.claim(2, second := term(2)).holds(second)
    assert kind.open().read() == (HeldSlot(1, first), HeldSlot(2, second))
    assert sorted(kind.list_names()) == ["1", "2"]


def test_a_list_that_can_only_be_read_is_found_before_a_claim(kind, term):
    listed = kind.open()
    listed.claim(1, first := term())
    with kind.deny_writes():
        assert listed.read() == (HeldSlot(1, first),)
        for refused in (listed.prove_writable, lambda: listed.claim(2, term(2))):
            with pytest.raises(ClaimsUnusable) as caught:
                refused()
            assert listed.where.rpartition("/")[2] in caught.value.what
            assert caught.value.means
            assert caught.value.do
    # A right may be given while the run goes on.
    listed.prove_writable()
    assert listed.claim(2, second := term(2)).holds(second)


def test_of_several_threads_one_wins_each_slot_and_all_agree(kind):
    slots, outcomes = 10, {}
    opened = [kind.open(), kind.open(), kind.open()]

    def run(name, listed):
        outcomes[name] = claim_until(listed, slots, name)

    # The last two share a list.
    threads = [
        threading.Thread(target=run, args=(f"t:{number}", listed))
        for number, listed in enumerate((*opened, opened[-1]))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    final = {one.slot: one.record for one in kind.open().read()}
    assert list(final) == list(range(1, slots + 1))
    assert [record.number for record in final.values()] == list(range(1, slots + 1))
    assert len(outcomes) == 4
    for name, (holders, own) in outcomes.items():
        assert all(final[slot].nonce == nonce for slot, nonce in holders.items())
        assert own == {slot for slot, record in final.items() if record.claimant == name}


def start_claimant(kind, slots):
    script = Path(__file__).with_name("claimant.py")
    return subprocess.Popen([sys.executable, script, kind.url, str(slots)], stdout=subprocess.PIPE, text=True)


def test_killed_processes_leave_no_gap_and_no_doubt(kind):
    """Three processes claim; two are killed at random times, and successors start."""
    slots, chance = 15, random.Random(5)
    started = [start_claimant(kind, slots) for _ in range(3)]
    seen = []
    for _ in range(3):
        victim = started.pop(chance.randrange(1, 3))
        # Kill it in the middle of its claims, not during its imports.
        seen.append(victim.stdout.readline())
        time.sleep(chance.random() * 0.02)  # not a wait: the instant is drawn
        victim.kill()
        seen += victim.stdout.readlines()
        victim.wait()
        victim.stdout.close()
        started.append(start_claimant(kind, slots))
    for process in started:
        out, _ = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
        seen += out.splitlines()
    final = {one.slot: one.record.nonce for one in kind.open().read()}
    assert list(final) == list(range(1, slots + 1))
    assert len(set(final.values())) == slots
    pairs = [line.split() for line in seen if line.strip()]
    assert len(pairs) >= slots - 3
    for slot, nonce in pairs:
        assert final[int(slot)] == nonce


MALFORMED = (
    (b"", "empty"),
    (b'{"kind":"term","number":1,"claim', "truncated"),
    (b"[" * 100_000, "bytes"),
    (b"[" * 1000, "deep"),
    (b'"' + b"x" * LARGEST_RECORD_BYTES + b'"', "bytes"),
    (b'{"kind":"throne","number":1}', "throne"),
    (b"\xff\xfe\x00", "malformed"),
)
"""Contents of a slot, each with a word of its explanation."""


# All of them in one place: it takes longer to begin a place than to list its slots.
def test_a_malformed_record_holds_its_slot_and_costs_only_itself(kind, term, caplog):
    for content, word in MALFORMED:
        kind.clear()
        caplog.clear()
        writer = kind.open()
        writer.claim(1, before := term())
        kind.put(2, content)
        listed = kind.open()
        second = listed.claim(2, term(2))
        assert isinstance(second.record, Unreadable), content[:50]
        assert word in second.record.why
        assert not second.holds(before), word
        after = term(3)
        assert listed.claim(3, after).holds(after), word
        assert listed.read() == (HeldSlot(1, before), second, HeldSlot(3, after))
        assert find_newest_term(listed.read()) == after, word
        told = [record.message for record in caplog.records if "slot 2" in record.message]
        assert len(told) == 1, word
        assert listed.where in told[0]


def test_an_outage_is_an_error_in_words_within_the_stated_time_and_passes(kind, term):
    listed = kind.open(wait_s=2.0)
    listed.claim(1, first := term())
    with kind.interrupt():
        begin = time.monotonic()
        with pytest.raises(ClaimsUnavailable) as caught:
            listed.claim(2, record := term(2))
        # Far more than its two seconds: an outage that is over only when a connection times out takes longer.
        assert time.monotonic() - begin < WAIT_S
        assert listed.where.rpartition(" ")[2] in caught.value.what
        assert caught.value.means
        assert caught.value.do
        with pytest.raises(ClaimsUnavailable, match=r"cannot|exist|answer|reports"):
            listed.read()
        with pytest.raises(ClaimsUnavailable) as caught:
            listed.prove_writable()
        assert caught.value.means
        assert caught.value.do
    patient = kind.open()
    # The claim may have arrived meanwhile; the same record settles it.
    assert patient.claim(2, record).holds(record)
    assert [one.record for one in patient.read()] == [first, record]

    def answers() -> bool:
        with suppress(ClaimsUnavailable):
            assert len(listed.read()) == 2
            return True
        return False

    # A call that hung is over soon after the outage.
    wait_until(answers, "the list answers")


def test_a_short_outage_is_not_noticed(kind, term):
    listed = kind.open(wait_s=60.0)
    listed.claim(1, term())
    record, found = term(2), []
    with kind.interrupt():
        thread = threading.Thread(target=lambda: found.append(listed.claim(2, record)))
        thread.start()
        time.sleep(0.3)  # not a wait: the claim is tried meanwhile, and fails
        assert not found
    thread.join()
    assert found == [HeldSlot(2, record)]


class LossyPlace:
    """A place whose creates report an error, before or after they have taken effect."""

    def __init__(self, place, failures, *, written):
        self._place, self.failures, self._written = place, failures, written
        self.where = place.where

    def create(self, slot, content):
        if self.failures:
            self.failures -= 1
            if self._written:
                self._place.create(slot, content)
            raise ClaimsUnavailable("the reply was lost")
        return self._place.create(slot, content)

    def read(self, first_slot):
        return self._place.read(first_slot)


@pytest.mark.parametrize("written", [False, True])
def test_a_lost_reply_is_settled_by_reading(kind, term, written):
    lossy = LossyPlace(kind.open()._place, 1, written=written)
    listed = ClaimList(lossy, wait_s=20.0)
    record = term()
    assert listed.claim(1, record).holds(record)
    assert lossy.failures == 0
    assert kind.open().read() == (HeldSlot(1, record),)


class FadingPlace:
    """A place that says once what is wrong, and then does not answer any more."""

    where = "the list"

    def __init__(self):
        self.answers, self.back = 1, threading.Event()

    def read(self, _first_slot):
        if not self.answers:
            self.back.wait()
        self.answers -= 1
        raise ClaimsUnavailable("the store is read-only")


def test_the_last_answer_of_a_place_is_told_when_the_time_is_up():
    place = FadingPlace()
    with pytest.raises(ClaimsUnavailable, match="read-only"):
        ClaimList(place, wait_s=1.0).read()
    with pytest.raises(ClaimsUnavailable, match=r"has not answered within 0\.5 s"):
        ClaimList(place, wait_s=0.5).read()
    place.back.set()


@pytest.mark.parametrize("fault", ["lost_replies", "silent_replies"])
@pytest.mark.parametrize("kind", ["s3", "controller"], indirect=True)
def test_a_claim_that_a_client_library_repeats_is_the_claimants_own(kind, term, fault):
    listed = kind.open()
    listed.claim(1, first := term())
    # The repeated request finds the slot held.
    setattr(kind.server, fault, 1)
    assert listed.claim(2, second := term(2)).holds(second)
    assert getattr(kind.server, fault) == 0
    assert kind.open().read() == (HeldSlot(1, first), HeldSlot(2, second))


@pytest.mark.parametrize("written", [False, True])
def test_a_claim_of_unknown_outcome_says_so_and_its_repetition_settles_it(kind, term, written):
    class Blind(LossyPlace):
        """A place that also cannot be read after the lost reply."""

        def read(self, first_slot):
            if self.failures == 0:
                raise ClaimsUnavailable("away")
            return super().read(first_slot)

    record, opened = term(), kind.open()
    opened.read()  # The first request loads the client of the store, which takes a second or two.
    with pytest.raises(ClaimsUnavailable, match="whether this claim holds slot 1 is unknown"):
        ClaimList(Blind(opened._place, 1, written=written), wait_s=2.0).claim(1, record)
    other = term(claimant="b:2")
    assert kind.open().claim(1, other).holds(record if written else other)
    assert kind.open().claim(1, record).holds(record) is written


def test_clocks_that_differ_do_not_matter(kind, term):
    late, early = (
        msgspec.structs.replace(term(number), time=time_s) for number, time_s in ((1, 9e9), (2, 0.0))
    )
    assert kind.open().claim(1, late).holds(late)
    assert kind.open().claim(1, early).holds(late)
    assert kind.open().claim(2, early).holds(early)
    assert find_newest_term(kind.open().read()) == early


def test_an_emptied_list_is_not_taken_for_a_new_one(kind, term):
    listed = kind.open(wait_s=5.0)
    for slot in (1, 2, 3):
        listed.claim(slot, term(slot))
    kind.clear()
    with pytest.raises(ClaimsUnavailable, match="lost slot 1, and 3 were held"):
        listed.read()
    with pytest.raises(ClaimsUnavailable, match="lost slot"):
        listed.claim(4, term(4))
    with pytest.raises(ClaimsUnavailable, match="lost slot"):
        listed.claim(1, term(1))
    assert kind.open().read() == ()


def test_the_next_term_of_a_list_has_a_new_number(kind, term):
    listed = kind.open()
    listed.claim(1, term(1))
    kind.put(2, b"torn")
    held = listed.read()
    assert number_next_term(held) == 3
    assert number_next_term(held, at_least=7) == 7
