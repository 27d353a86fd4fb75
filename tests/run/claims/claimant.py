"""Claims the next slot of a list until it has so many, and prints the holder of each slot that it saw.

``python claimant.py URL SLOTS``; `claim_until` does the same in a thread.
"""

import os
import sys
import time

from elastane.run.machines.claims.history import find_next_slot, number_next_term
from elastane.run.machines.claims.records import TermClaim, make_nonce
from elastane.run.machines.claims.urls import open_claim_list


def claim_until(listed, slots, name, say=lambda slot, nonce: None):
    """Claim until the list has so many slots; return the nonces of the slots' holders, and the own ones."""
    holders, own = {}, set()
    while True:
        held = listed.read()
        for one in held:
            assert holders.setdefault(one.slot, one.record.nonce) == one.record.nonce
        slot = find_next_slot(held)
        if slot > slots:
            return holders, own
        record = TermClaim(number=number_next_term(held), claimant=name, nonce=make_nonce(), time=time.time())
        holder = listed.claim(slot, record)
        holders[slot] = holder.record.nonce
        say(slot, holder.record.nonce)
        if holder.holds(record):
            own.add(slot)


if __name__ == "__main__":
    claim_until(
        open_claim_list(sys.argv[1], wait_s=60.0),
        int(sys.argv[2]),
        f"here:{os.getpid()}",
        lambda slot, nonce: print(slot, nonce, flush=True),  # noqa: T201
    )
