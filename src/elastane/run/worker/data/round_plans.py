"""The plan that divides a dataset into rounds of inner steps."""

import re
from collections.abc import Collection

import msgspec

from elastane.common.errors import BadInput
from elastane.run.nouns.membership import SiteName
from elastane.run.nouns.sites import AbsentRule, deal_ranks_to_sites
from elastane.run.nouns.spec import DATA_START, DataPosition
from elastane.run.worker.data.batch_sources import BatchPlan, make_plan
from elastane.run.worker.data.dataset_checks import check_count


def make_round_plan(
    length: int,
    inner_steps: int,
    ranks: int,
    global_batch: int,
    until: str | int,
    *,
    microbatch: int | None = None,
    seed: int,
    began_at: DataPosition = DATA_START,
) -> BatchPlan:
    """Return the plan for the numbers that the script has passed to ``run.rounds``.

    Args:
        length: the length of the dataset, in samples; 0: each site has a dataset of its own.
        inner_steps: H, the steps of each virtual rank in a round.
        ranks: V, the number of virtual ranks.
        global_batch: the samples that all virtual ranks together take for one inner step.
        until: ``"3 epochs"``, ``"500 rounds"`` or a number of rounds.
        microbatch: the samples of one pass; None: all that a virtual rank takes for an inner step.
        began_at: where the data stood when the run began; ``until`` counts what came before, too.

    Raises:
        BadInput: the numbers do not fit together.
    """
    for name, value in (("inner_steps", inner_steps), ("ranks", ranks), ("global_batch", global_batch)):
        check_count("run.rounds", name, value)
    if global_batch % ranks:
        raise BadInput(
            f"a global batch of {global_batch} does not divide into {ranks} virtual ranks",
            means="all virtual ranks take the same number of samples for an inner step",
            do=f"choose a number of ranks that divides {global_batch}",
        )
    own = global_batch // ranks
    check_count("run.rounds", "microbatch", microbatch := own if microbatch is None else microbatch)
    if own % microbatch:
        raise BadInput(
            f"a microbatch of {microbatch} does not divide the {own} samples of an inner step",
            means="an inner step of a virtual rank consists of whole microbatches",
            do=f"choose a microbatch that divides {own}",
        )
    samples = inner_steps * global_batch
    plan = make_plan(
        length,
        samples,
        samples // ranks,
        _parse_until(until),
        virtual_ranks=None,
        seed=seed,
        began_at=began_at,
    )
    return msgspec.structs.replace(
        plan, microbatch=microbatch, inner_steps=inner_steps, passes=own // microbatch
    )


def bind_ranks(plan: BatchPlan, sites: Collection[SiteName], absent: AbsentRule) -> BatchPlan:
    """Return the plan of rounds with virtual ranks that are bound to sites.

    Raises:
        BadInput: the sites cannot share the virtual ranks equally, or the run would count epochs.
    """
    if plan.virtual_ranks % len(sites):
        raise BadInput(
            f"{plan.virtual_ranks} virtual ranks do not divide into {len(sites)} sites",
            means="each site computes as many virtual ranks as any other",
            do=f"choose a number of ranks that is a multiple of {len(sites)}, at least one for each worker",
        )
    if not plan.steps:
        raise BadInput(
            "run.rounds was given a number of epochs for data of several sites",
            means="each site begins an epoch of its own when it has read its data, some sites more often",
            do="pass the number of rounds, such as until='500 rounds'",
        )
    rank_sites = deal_ranks_to_sites(sorted(sites), plan.virtual_ranks)
    return msgspec.structs.replace(plan, rank_sites=rank_sites, absent=absent)


def _parse_until(until: str | int) -> str | int:
    """Return the number of rounds, or the text of a number of epochs."""
    match = re.fullmatch(r"\s*(\d+)\s*(rounds?|epochs?)?\s*", str(until))
    if isinstance(until, bool) or match is None or not int(match[1]):
        raise BadInput(
            f"run.rounds was given an invalid until: {until!r}",
            means="until is the number of rounds or epochs after which the run ends",
            do="pass a text such as '3 epochs' or '500 rounds', or a number of rounds",
        )
    return f"{match[1]} epochs" if (match[2] or "").startswith("epoch") else int(match[1])
