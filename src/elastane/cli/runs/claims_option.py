"""The place that ``--claims`` names: a directory, an object store, or the store of a controller."""

from pathlib import Path
from urllib.parse import urlsplit

from elastane.cli.jobs.own_team import find_team_of
from elastane.common.connections.controller_context import check_url, find_context_of
from elastane.common.errors import BadInput
from elastane.common.field_checks import check_name
from elastane.run.machines.claims.urls import CONTROLLER_SCHEMES, open_claim_list


def complete_claims_url(url: str) -> str:
    """Return the place of ``--claims`` for all machines: with an absolute path, and with a team.

    A controller's address without a team gets the team of this user. All machines then use the list of that
    team, also those with tokens of other teams: two lists would be two runs.

    Raises:
        BadInput: the place cannot keep a claim list, or this machine has no token for the controller.
    """
    if urlsplit(url).scheme not in CONTROLLER_SCHEMES:
        open_claim_list(url)
        return url if "://" in url else str(Path(url).absolute())
    if "@" in urlsplit(url).netloc:
        raise BadInput(
            "the address of --claims has a user name or a password",
            means="all machines of the run would read it in run.json",
            do="write https://HOST:PORT; elastane login saves the token of this machine",
        )
    address, _, team = url.rstrip("/").rpartition("/")
    if urlsplit(url).path.strip("/"):
        check_url(address)
        check_name("--claims", team)
        find_context_of(address)
        return f"{address}/{team}"
    check_url(url)
    return f"{url.rstrip('/')}/{find_team_of(find_context_of(url))}"
