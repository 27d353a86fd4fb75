"""The check that the data of a run continues where that of its origin stood."""

from collections.abc import Mapping

from elastane.common.errors import BadInput
from elastane.run.nouns.membership import SiteName
from elastane.run.nouns.spec import Pinned, RunOrigin
from elastane.run.worker.data.batch_sources import BatchPlan


def check_continuity(
    origin: RunOrigin, plan: BatchPlan, site_digests: Mapping[SiteName, str], *, is_ordered: bool
) -> None:
    """Refuse data that cannot continue at the position of the origin; at the end of an epoch most can.

    Args:
        site_digests: of the datasets of this worker's sites.
        is_ordered: the script chooses the order of each epoch.

    Raises:
        BadInput: samples would be lost, or trained on twice.
    """
    was, at = origin.pinned, origin.position
    problem = ""
    if bool(was.dataset_length) != bool(plan.length):
        kinds = {True: "a dataset with a length", False: "a stream"}
        problem = (
            f"it trained on {kinds[bool(was.dataset_length)]}, and now run.steps was given the other kind"
        )
    elif not plan.length and was.virtual_ranks != plan.virtual_ranks:
        problem = (
            f"its stream has {was.virtual_ranks} shards, one for each virtual rank; now it has "
            f"{plan.virtual_ranks}"
        )
    elif was.rank_sites != plan.rank_sites:
        sites = (", ".join(sorted(set(ranks))) or "no site" for ranks in (was.rank_sites, plan.rank_sites))
        problem = "its data is bound to {}, and now to {}".format(*sites)
    elif origin.step and (changed := _find_changed_sites(was, site_digests)):
        problem = f"the data of site {' and '.join(changed)} has changed"
    elif plan.length and at.start:
        where = f"epoch {at.epoch} has begun there, up to sample {at.start}"
        if was.dataset_length != plan.length:
            problem = f"{where} of {was.dataset_length}, and the dataset now has {plan.length} samples"
        elif was.seed != plan.seed:
            problem = f"{where}, in the order of seed {was.seed}, not {plan.seed}"
        elif bool(was.order_digest) != is_ordered:
            problem = f"{where}, and the order of the epoch is now another one"
    if problem:
        raise BadInput(
            f"the data cannot continue from {origin}: {problem}",
            means="samples of the epoch would be lost, or trained on twice",
            do="use the same data as that run; other data can begin at the end of an epoch: --from RUN@STEP",
        )


def _find_changed_sites(was: Pinned, digests: Mapping[SiteName, str]) -> list[SiteName]:
    return [site for site, digest in digests.items() if was.site_digests.get(site, digest) != digest]


def check_same_epochs(origin: RunOrigin | None, global_batch: int, length: int) -> None:
    """Refuse another division into steps under a trainer that counts its epochs from the number of a step.

    Args:
        origin: of the run; None: it has none.
        length: of the dataset, in samples; 0: a stream.

    Raises:
        BadInput: the trainer would count other epochs than the run.
    """
    if origin is None:
        return
    was, now = (origin.pinned.global_batch, origin.pinned.dataset_length), (global_batch, length)
    if was != now:
        raise BadInput(
            f"{origin} has steps of {was[0]} samples of {was[1]}, and this Trainer has {now[0]} of {now[1]}",
            means="the Trainer counts its epochs from the number of a step, so it would count wrongly",
            do="keep the global batch and the dataset; or start a new run from the weights, without --from",
        )


def build_nothing_left_error(origin: RunOrigin, plan: BatchPlan) -> BadInput:
    """Return the error of a run that would end where it begins."""
    end = f"after step {plan.steps}" if plan.steps else f"after {plan.epochs} epochs"
    return BadInput(
        f"the run begins from {origin}, and until= of run.steps ends it {end}",
        means="until counts the steps and epochs of that run too, so nothing is left to train",
        do="pass a larger until=, such as the epochs of both runs together",
    )


def describe_changes(origin: RunOrigin, now: Pinned) -> str:
    """Describe the settings that decide the bits and differ from those of the origin; empty: none does.

    Args:
        now: the pinned settings of this run.
    """
    names = (
        "global_batch", "microbatch", "virtual_ranks", "dataset_length", "dropped", "dataset_digest",
        "seed", "threads", "convergence", "numerics", "steps",
    )  # fmt: skip
    found = []
    for name in names:
        was, value = getattr(origin.pinned, name), getattr(now, name)
        if was != value:
            is_text = name == "dataset_digest"
            found.append("other samples" if is_text else f"{name} {value} (formerly {was})")
    changed_sites = _find_changed_sites(origin.pinned, now.site_digests)
    found += [f"other samples of site {site}" for site in changed_sites]
    if origin.pinned.layout_digest != now.layout_digest:
        found.append("other frozen parameters, or another layout of the state")
    if origin.pinned.script_digest != now.script_digest:
        found.append("another script")
    return ", ".join(found)
