"""``elastane team`` and ``elastane cohort``: the owners of quotas."""

from typing import Annotated

import msgspec
import typer

from elastane.cli.command import AsJson, wrap_command
from elastane.cli.operators.declarations import Name, add_document_commands, change_document, make_group
from elastane.cli.options import expand_options, replace_given
from elastane.cluster.nouns.config import Cohort, Limits, Quota, Team

LIMITS = Limits()
"""The default limits of a team."""

Weight = Annotated[
    float | None,
    typer.Option(
        metavar="WEIGHT", help="Share of idle devices, relative to the weights of its siblings. Default: 1."
    ),
]


class TeamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``elastane team set`` as typed; None: not typed."""

    cohort: Annotated[
        str | None,
        typer.Option(
            metavar="COHORT", help="Cohort of the team, to which it lends first; '' for the cluster."
        ),
    ] = None
    weight: Weight = None
    max_jobs: Annotated[
        int | None,
        typer.Option(metavar="N", help=f"Limit of jobs that have not ended. Default: {LIMITS.jobs}."),
    ] = None
    max_jobs_per_user: Annotated[
        int | None,
        typer.Option(
            metavar="N", help=f"The same limit for each user of the team. Default: {LIMITS.jobs_per_user}."
        ),
    ] = None
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", help=f"Limit of valid tokens. Default: {LIMITS.tokens}.")
    ] = None
    max_watchers: Annotated[
        int | None,
        typer.Option(metavar="N", help=f"Limit of open streams of events. Default: {LIMITS.watchers}."),
    ] = None
    max_stored_mib: Annotated[
        int | None,
        typer.Option(
            metavar="MIB",
            help="Limit of the stored specs of its jobs, including ended jobs, in MiB. "
            f"Default: {LIMITS.stored_mib}.",
        ),
    ] = None


@expand_options
def set_team(name: Name, *, options: TeamOptions, as_json: AsJson = False) -> None:
    """Declare a team, or change the given fields of one; defaults are for a new team.

    elastane quota set sets its quotas.
    """

    def change_team(before: Team | None) -> Team:
        team = before or Team(name=name)
        limits = replace_given(
            team.limits,
            jobs=options.max_jobs,
            jobs_per_user=options.max_jobs_per_user,
            tokens=options.max_tokens,
            watchers=options.max_watchers,
            stored_mib=options.max_stored_mib,
        )
        return replace_given(team, cohort=options.cohort, weight=options.weight, limits=limits)

    change_document("team", Team, name, change_team, as_json=as_json)


def set_cohort(
    name: Name,
    *,
    parent: Annotated[
        str | None, typer.Option(metavar="COHORT", help="Parent cohort; '' for the cluster.")
    ] = None,
    weight: Weight = None,
    as_json: AsJson = False,
) -> None:
    """Declare a cohort, or change the given fields of one; defaults are for a new cohort."""

    def change_cohort(before: Cohort | None) -> Cohort:
        return replace_given(before or Cohort(name=name), parent=parent, weight=weight)

    change_document("cohort", Cohort, name, change_cohort, as_json=as_json)


def format_quotas(quotas: tuple[Quota, ...]) -> str:
    """Return quotas as text: ``h100 8, a100 4``."""
    return ", ".join(f"{quota.pool} {quota.nominal_quota}" for quota in quotas)


team = make_group(
    "team",
    """
Manage teams: the owners of jobs and quotas.

  $ elastane cohort set research
  $ elastane team set vision --cohort research --weight 2
  $ elastane quota set vision --pool h100 --nominal 8
""",
)
team.command("set")(wrap_command(set_team))
add_document_commands(
    team,
    "team",
    Team,
    ("team", "cohort", "weight", "owns"),
    lambda one: (one.name, one.cohort, f"{one.weight:g}", format_quotas(one.quotas)),
    numbers=("weight",),
)

cohort = make_group("cohort", "Manage cohorts: groups of teams that lend devices to each other first.")
cohort.command("set")(wrap_command(set_cohort))
add_document_commands(
    cohort,
    "cohort",
    Cohort,
    ("cohort", "parent", "weight", "owns"),
    lambda one: (one.name, one.parent, f"{one.weight:g}", format_quotas(one.quotas)),
    numbers=("weight",),
)
