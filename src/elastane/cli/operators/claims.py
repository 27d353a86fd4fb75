"""``elastane claims``: the claim lists that runs keep in the store of the controller."""

from typing import TYPE_CHECKING, Annotated

from elastane.cli.command import AsJson, make_group, print_outcome
from elastane.cli.operators.tables import print_rows
from elastane.cli.options import argument, option
from elastane.cli.timestamps import format_minute
from elastane.cluster.client.context import connect
from elastane.common.errors import BadInput
from elastane.run.machines.claims.slots import KeptClaimList
from elastane.run.observability.quantities import format_size

if TYPE_CHECKING:
    from elastane.cluster.client.cluster import Cluster


def show_claim_lists(as_json: AsJson = False) -> None:
    """List the claim lists of your team, or of all teams for an operator."""
    with connect() as cluster:
        found = list(cluster.claims.list())
    print_rows(
        found,
        {
            "list": lambda row: row.name,
            "team": lambda row: row.team,
            "user": lambda row: row.user,
            "size": lambda row: format_size(row.content_bytes),
            "last used": lambda row: format_minute(row.used_s),
        },
        as_json=as_json,
        numbers=("size",),
    )


def delete_claim_list(
    name: Annotated[str, argument("LIST", "Name of the list, as elastane claims list shows it.")],
    team: Annotated[str, option("TEAM", "Team that owns LIST, if several have one of this name.")] = "",
    as_json: AsJson = False,
) -> None:
    """Delete LIST, of a run that has ended for good and will not be resumed."""
    with connect() as cluster:
        found = _find_list(cluster, name, team)
        cluster.claims.forget(found.team, found.name)
    words = f"claim list {found.name} of team {found.team} deleted"
    print_outcome({"deleted": f"{found.team}/{found.name}"}, words, as_json=as_json)


def _find_list(cluster: "Cluster", name: str, team: str) -> KeptClaimList:
    found = [
        claim_list
        for claim_list in cluster.claims.list()
        if claim_list.name == name and team in ("", claim_list.team)
    ]
    if not found:
        raise BadInput(
            f"there is no claim list {name}" + (f" of team {team}" if team else ""),
            means="nothing was deleted; it was deleted before, or belongs to a team that you cannot see",
            do="elastane claims list",
        )
    if len(found) > 1:
        teams = ", ".join(claim_list.team for claim_list in found)
        raise BadInput(
            f"{len(found)} teams have a claim list {name}: {teams}",
            means="nothing was deleted",
            do=f"elastane claims delete {name} --team {found[0].team}",
        )
    return found[0]


claims = make_group(
    "claims",
    """
Manage the claim lists of runs that keep their claims in the controller.

The controller deletes a list 90 days after its last use. Delete one sooner if
the lists of your team have used up their 64 MiB.

  $ elastane claims delete train-0123456789ab
""",
    {"list": show_claim_lists, "delete": delete_claim_list},
)
