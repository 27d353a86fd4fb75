"""Checks of a recipe that trains in rounds, and of data that is bound to sites."""

import re

from elastane.common.field_checks import make_field_error
from elastane.integrations.recipes.recipe import Recipe, RoundsSpec
from elastane.run.nouns.membership import SITE_NAME

FIELD = "training.rounds"


def check_rounds(recipe: Recipe) -> None:
    """Check that the rounds of a recipe fit to its batch, its model and its workers; without rounds nothing.

    Raises:
        BadField: two fields do not go together; the error names one of them as ``--set`` does.
    """
    rounds = recipe.training.rounds
    if rounds is None:
        return
    microbatches = recipe.batch.microbatches
    if microbatches % rounds.ranks:
        possible = max(n for n in range(1, min(rounds.ranks, microbatches) + 1) if microbatches % n == 0)
        raise make_field_error(
            f"{FIELD}.ranks",
            f"{rounds.ranks} virtual ranks cannot share the {microbatches} microbatches of a step equally",
            f"write a divisor of {microbatches}, such as {possible}, or another batch.size",
            means="an inner step of a virtual rank consists of whole microbatches",
        )
    if rounds.ranks % rounds.group or rounds.group & (rounds.group - 1):
        raise make_field_error(
            f"{FIELD}.group",
            f"{rounds.group} is not the size of a group of {rounds.ranks} virtual ranks",
            f"write a power of two that divides {rounds.ranks}",
            means="virtual ranks are added in pairs, then in pairs of pairs, and rounded after one such sum",
        )
    if recipe.workers.processes > 1:
        raise make_field_error(
            FIELD,
            f"cannot be combined with workers.processes: {recipe.workers.processes}",
            "write workers.processes: 1",
            means="the changes of a divided model have not been tried",
        )
    if recipe.model.dtype == "bfloat16" and recipe.lora is None:
        raise make_field_error(
            FIELD,
            "cannot be combined with model.dtype: bfloat16, unless an adapter is trained",
            "write model.dtype: float32, with training.autocast: true to compute in bfloat16; or add lora",
            means="a round adds up what weights have changed, and bfloat16 has too few bits for that",
        )
    if rounds.delay and rounds.inner_state == "averaged":
        raise make_field_error(
            f"{FIELD}.delay",
            f"{rounds.delay} cannot be combined with {FIELD}.inner_state: averaged",
            f"write {FIELD}.delay: 0, or {FIELD}.inner_state: fresh",
            means="only parameters may come one round later than the samples from which they follow",
        )


def check_sites(recipe: Recipe) -> None:
    """Check that a recipe can train on data that is bound to sites, or that its data is not.

    Raises:
        BadField: see `check_rounds`.
    """
    rounds, data = recipe.training.rounds, recipe.data
    if not data.sites:
        if rounds is not None and rounds.absent is not None:
            raise make_field_error(
                f"{FIELD}.absent",
                f"{rounds.absent} cannot be combined with data that every site reads",
                f"remove {FIELD}.absent, or name the data of each site in data.sites",
                means="others compute the virtual ranks of an absent site, exactly",
            )
        return
    if rounds is None:
        raise make_field_error(
            "data.sites",
            "needs training.rounds",
            "write for example training.rounds: {inner_steps: 20}",
            means="sites exchange what they have learned once in many steps",
        )
    if wrong := [name for name in data.sites if not re.fullmatch(SITE_NAME, name)]:
        raise make_field_error(
            "data.sites",
            f"{wrong[0]!r} cannot be the name of a site",
            "write up to 63 small letters, digits, dots and dashes, such as eu-1",
        )
    if data.path:
        raise make_field_error("data.path", "cannot be combined with data.sites", "remove one of them")
    if not data.tokenizer and not recipe.model.source:
        raise make_field_error(
            "data.tokenizer",
            "is empty, and the data is bound to sites",
            "write the folder of a tokenizer, or model.from, a model that has one",
            means="a tokenizer of this recipe would have to be trained on the data of all sites",
        )
    if data.held_out and not isinstance(data.held_out, str):
        raise make_field_error(
            "data.held_out",
            f"{data.held_out:g} is a fraction, and the data is bound to sites",
            "write 0, or the path of data that every site may read",
            means="all workers evaluate the model together",
        )
    if not recipe.training.steps:
        raise make_field_error(
            "training.steps",
            "is 0, and the data is bound to sites",
            "write the number of steps",
            means="each site begins an epoch of its own when it has read its data",
        )
    _check_ranks_of_sites(recipe, rounds)


def _check_ranks_of_sites(recipe: Recipe, rounds: RoundsSpec) -> None:
    sites = len(recipe.data.sites)
    if rounds.ranks % sites:
        raise make_field_error(
            f"{FIELD}.ranks",
            f"{rounds.ranks} virtual ranks do not divide into {sites} sites",
            f"write a multiple of {sites} that divides {recipe.batch.microbatches}, the microbatches",
            means="each site computes as many virtual ranks as any other",
        )
    if rounds.delay and rounds.absent == "skip":
        raise make_field_error(
            f"{FIELD}.delay",
            f"{rounds.delay} cannot be combined with {FIELD}.absent: skip",
            f"write {FIELD}.delay: 0, or {FIELD}.absent: wait",
            means="a site that is absent in the next round could not hand over what it has changed",
        )
    if rounds.absent == "skip" and recipe.workers.copies != "all":
        raise make_field_error(
            "workers.copies",
            f"{recipe.workers.copies} cannot be combined with {FIELD}.absent: skip",
            "write workers.copies: all",
            means="a site that is left out might hold the only copy of some state",
        )
