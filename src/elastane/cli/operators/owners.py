"""``elastane team``, ``cohort`` and ``quota``: the owners of devices, and what they own, borrow and lend."""

from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec

from elastane.cli.command import AsJson, make_group, open_console, print_json, print_outcome
from elastane.cli.operators.declarations import Name, add_document_commands, change_document, format_change
from elastane.cli.operators.tables import print_rows
from elastane.cli.option_values import UNLIMITED, read_limit
from elastane.cli.options import argument, expand_options, option, replace_given
from elastane.cluster.client.context import connect
from elastane.cluster.nouns.config import Cohort, Limits, Quota, Team
from elastane.common.errors import BadInput

N = TypeVar("N", Team, Cohort)
LIMITS = Limits()
"""The default limits of a team."""
Weight = Annotated[
    float | None,
    option("WEIGHT", "Share of idle devices, relative to the weights of its siblings. Default: 1."),
]
Owner = Annotated[str, argument("OWNER", "Name of a team or a cohort.")]
PoolName = Annotated[str, option("POOL", "Pool of the devices.", "--pool")]


class TeamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``elastane team set`` as typed; None: not typed."""

    cohort: Annotated[
        str | None, option("COHORT", "Cohort of the team, to which it lends first; '' for the cluster.")
    ] = None
    weight: Weight = None
    max_jobs: Annotated[
        int | None, option("N", f"Limit of jobs that have not ended. Default: {LIMITS.jobs}.")
    ] = None
    max_jobs_per_user: Annotated[
        int | None, option("N", f"The same limit for each user of the team. Default: {LIMITS.jobs_per_user}.")
    ] = None
    max_tokens: Annotated[int | None, option("N", f"Limit of valid tokens. Default: {LIMITS.tokens}.")] = None
    max_watchers: Annotated[
        int | None, option("N", f"Limit of open streams of events. Default: {LIMITS.watchers}.")
    ] = None
    max_stored_mib: Annotated[
        int | None,
        option(
            "MIB",
            "Limit of the stored specs of its jobs, including ended jobs, in MiB. "
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
    parent: Annotated[str | None, option("COHORT", "Parent cohort; '' for the cluster.")] = None,
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
    {"set": set_team},
)
add_document_commands(
    team,
    "team",
    Team,
    {
        "team": lambda team: team.name,
        "cohort": lambda team: team.cohort,
        "weight": lambda team: f"{team.weight:g}",
        "owns": lambda team: format_quotas(team.quotas),
    },
    numbers=("weight",),
)

cohort = make_group(
    "cohort", "Manage cohorts: groups of teams that lend devices to each other first.", {"set": set_cohort}
)
add_document_commands(
    cohort,
    "cohort",
    Cohort,
    {
        "cohort": lambda cohort: cohort.name,
        "parent": lambda cohort: cohort.parent,
        "weight": lambda cohort: f"{cohort.weight:g}",
        "owns": lambda cohort: format_quotas(cohort.quotas),
    },
    numbers=("weight",),
)


def set_quota(
    owner: Owner,
    *,
    pool: PoolName,
    nominal: Annotated[int | None, option("N", "Number of devices that OWNER owns. Default: 0.")] = None,
    borrow: Annotated[
        str | None, option(f"N|{UNLIMITED}", f"Most devices that OWNER may borrow. Default: {UNLIMITED}.")
    ] = None,
    lend: Annotated[
        str | None,
        option(f"N|{UNLIMITED}", f"Most of its own devices that OWNER lends. Default: {UNLIMITED}."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Set how many devices of a pool OWNER owns, may borrow and lends.

    Options that are not given stay unchanged; defaults are for a new quota.
    """

    def change_quota(quota: Quota) -> Quota:
        return msgspec.structs.replace(
            quota,
            nominal_quota=quota.nominal_quota if nominal is None else nominal,
            borrowing_limit=quota.borrowing_limit if borrow is None else read_limit("--borrow", borrow),
            lending_limit=quota.lending_limit if lend is None else read_limit("--lend", lend),
        )

    def add_or_replace(quotas: tuple[Quota, ...]) -> tuple[Quota, ...]:
        known = {quota.pool: quota for quota in quotas}
        return tuple((known | {pool: change_quota(known.get(pool, Quota(pool=pool)))}).values())

    _change_quotas(owner, add_or_replace, as_json=as_json)
    with connect() as cluster:
        owners: tuple[Team | Cohort, ...] = (*cluster.documents.list(Team), *cluster.documents.list(Cohort))
        found = next((row for row in cluster.occupancy() if row.pool == pool), None)
    promised = sum(quota.nominal_quota for node in owners for quota in node.quotas if quota.pool == pool)
    if found is not None and promised > found.devices:
        open_console(as_json=True).print(
            f"warning: quotas promise {promised} devices of pool {pool}, which has {found.devices}: until it"
            " has all of them, each promise shrinks in proportion",
            markup=False,
        )


def remove_quota(owner: Owner, *, pool: PoolName, as_json: AsJson = False) -> None:
    """Remove the quota of OWNER in a pool. OWNER may then borrow there without limit."""

    def drop_pool(quotas: tuple[Quota, ...]) -> tuple[Quota, ...]:
        others = tuple(quota for quota in quotas if quota.pool != pool)
        if others == quotas:
            raise BadInput(
                f"{owner} has no quota in pool {pool}", do="choose one that elastane quota list shows"
            )
        return others

    _change_quotas(owner, drop_pool, as_json=as_json)


def show_quotas(
    pool: Annotated[str, option("POOL", "Only quotas in this pool.", "--pool")] = "", as_json: AsJson = False
) -> None:
    """List the quotas.

    With --json, a list of objects with the keys owner, kind and quota.
    """
    with connect() as cluster:
        nodes: tuple[Team | Cohort, ...] = (*cluster.documents.list(Cohort), *cluster.documents.list(Team))
    found = [(node, quota) for node in nodes for quota in node.quotas if pool in ("", quota.pool)]
    if as_json:
        print_json([{"owner": node.name, "kind": _name_kind(node), "quota": quota} for node, quota in found])
        return
    print_rows(
        found,
        {
            "owner": lambda row: row[0].name,
            "kind": lambda row: _name_kind(row[0]),
            "pool": lambda row: row[1].pool,
            "owns": lambda row: str(row[1].nominal_quota),
            "may borrow": lambda row: _format_limit(row[1].borrowing_limit),
            "lends": lambda row: _format_limit(row[1].lending_limit),
        },
        as_json=False,
        numbers=("owns", "may borrow", "lends"),
        empty="no quotas are declared; every job borrows from the cluster",
    )


def _change_quotas(
    owner: str, change: Callable[[tuple[Quota, ...]], tuple[Quota, ...]], *, as_json: bool
) -> None:
    """Change the quotas of the team or cohort with this name; no team and cohort share a name."""

    def change_owner(node: N | None, kind: type[N]) -> N:
        node = node or kind(name=owner)
        return msgspec.structs.replace(node, quotas=change(node.quotas))

    before: Team | Cohort | None
    after: Team | Cohort
    with connect() as cluster:
        if any(team.name == owner for team in cluster.documents.list(Team)):
            before, after = cluster.documents.amend(Team, owner, lambda team: change_owner(team, Team))
        elif any(cohort.name == owner for cohort in cluster.documents.list(Cohort)):
            before, after = cluster.documents.amend(
                Cohort, owner, lambda cohort: change_owner(cohort, Cohort)
            )
        else:
            raise BadInput(
                f"there is no team or cohort {owner!r}",
                means="nothing was changed",
                do=f"declare it first: elastane team set {owner}, or elastane cohort set {owner}",
            )
    print_outcome(after, format_change(_name_kind(after), owner, before, after), as_json=as_json)


def _name_kind(node: Team | Cohort) -> str:
    return "team" if isinstance(node, Team) else "cohort"


def _format_limit(devices: int | None) -> str:
    return UNLIMITED if devices is None else str(devices)


quota = make_group(
    "quota",
    """
Manage quotas: the devices that teams and cohorts own, borrow and lend.

Devices without an owner belong to the cluster, which lends them to all teams.
Idle devices of an owner are lent too, and returned when the owner needs them.

  $ elastane quota set vision --pool h100 --nominal 8 --borrow 16
  $ elastane quota set speech --pool h100 --nominal 8 --lend 4
  $ elastane quota list
""",
    {"set": set_quota, "list": show_quotas, "remove": remove_quota},
)
