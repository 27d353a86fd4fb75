"""Absent sites: the virtual ranks that a round leaves out, the same on every member.

Virtual ranks of bound data are computed at their site only. Whether rounds do without a site is a decision of
the coordinator, and part of the generation. A generation that begins in the middle of a round must not leave
out a virtual rank with results that another member may have committed.

A member commits only with all votes. In a run that may leave out sites, a member votes only when it knows the
leaves of all virtual ranks. So if any member has committed, the others have all whole sums and all leaves,
and go on with them.
"""

from collections.abc import Collection


def choose_left_out(
    absent: frozenset[int],
    before: frozenset[int],
    known: Collection[int],
    *,
    is_summed: bool,
    is_begun: bool,
) -> frozenset[int] | None:
    """Return the virtual ranks that a round leaves out; None: it is void, and the next round repeats it.

    Args:
        absent: those of the sites that the generation leaves out.
        before: those that the round has left out so far, in an earlier generation.
        known: those with leaves that a member knew when the generation began.
        is_summed: its members have the whole sums of all blocks.
        is_begun: they have the whole sum of some block, perhaps with results of absent sites in it.
    """
    if absent <= before:
        return before
    if is_summed and absent <= before.union(known):
        return before
    return None if is_begun else absent | before
