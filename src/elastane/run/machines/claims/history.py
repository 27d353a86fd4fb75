"""Decisions about a claim list that was read from slot 1 on: the term in charge, and the next one."""

from collections.abc import Sequence

from elastane.run.machines.claims.records import (
    Decision,
    GenerationClaim,
    HeldSlot,
    OutcomeClaim,
    TermClaim,
    Unreadable,
)


def find_next_slot(held: Sequence[HeldSlot]) -> int:
    """Return the first slot that is not held."""
    return held[-1].slot + 1 if held else 1


def number_next_term(held: Sequence[HeldSlot], at_least: int = 1) -> int:
    """Return the number of a term that is claimed in the next slot.

    It exceeds the number of every term in the list, also of one that cannot be read any more: such a record
    counts as one more term, since the claimants of a list number their terms by this function.

    Args:
        held: all slots.
        at_least: a number that is known from elsewhere.
    """
    newest = 0
    for held_slot in held:
        match held_slot.record:
            case TermClaim(number=number):
                newest = max(newest, number)
            case Unreadable():
                newest += 1
            case GenerationClaim() | OutcomeClaim():
                pass
    return max(newest + 1, at_least)


def find_newest_term(held: Sequence[HeldSlot]) -> TermClaim | None:
    """Return the term in charge: the first record with the highest number; None: no term is claimed."""
    newest: TermClaim | None = None
    for held_slot in held:
        match held_slot.record:
            case TermClaim() as term if newest is None or term.number > newest.number:
                newest = term
            case _:
                pass
    return newest


def find_superseding_term(held: Sequence[HeldSlot], own: TermClaim) -> TermClaim | None:
    """Return the term that is in charge instead of the own one; None: the own term is in charge.

    Args:
        held: all slots.
        own: term of the caller, which may act before it could claim it. Then an equal number counts too.
    """
    newest = find_newest_term(held)
    if newest is None or newest.nonce == own.nonce or newest.number < own.number:
        return None
    return newest


def list_generations(held: Sequence[HeldSlot]) -> tuple[GenerationClaim, ...]:
    """Return the unplanned generations that count, in order."""
    return tuple(decision for decision in _list_decisions(held) if isinstance(decision, GenerationClaim))


def find_claimed_outcome(held: Sequence[HeldSlot], first_term: int = 1) -> OutcomeClaim | None:
    """Return the outcome that counts; None: no coordinator has claimed one.

    Args:
        held: all slots.
        first_term: of the present attempt; earlier attempts had outcomes of their own.
    """
    outcomes = (outcome for outcome in _list_decisions(held) if isinstance(outcome, OutcomeClaim))
    return next((outcome for outcome in outcomes if outcome.term >= first_term), None)


def _list_decisions(held: Sequence[HeldSlot]) -> tuple[Decision, ...]:
    """Return the decisions that count, in order: those of the term in charge at their time.

    A coordinator may have lost its term between its last read and its claim; that claim does not count.
    """
    term, found = 0, list[Decision]()
    for held_slot in held:
        match held_slot.record:
            case TermClaim(number=number):
                term = max(term, number)
            case GenerationClaim() | OutcomeClaim() as decision:
                if decision.term >= term:
                    found.append(decision)
                # The record of its term may be unreadable.
                term = max(term, decision.term)
            case Unreadable():
                pass
    return tuple(found)


def describe_unreadable(held: HeldSlot, where: str) -> str:
    """Return a sentence about a slot without a readable record; empty if its record can be read."""
    if not isinstance(held.record, Unreadable):
        return ""
    return (
        f"slot {held.slot} of the claim list {where} cannot be read: {held.record.why}; it stays held, and "
        "the other slots count as before"
    )
