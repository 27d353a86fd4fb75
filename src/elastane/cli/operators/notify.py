"""``elastane notify``: services that get a message when something happens to the jobs of a team."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

from elastane.cli.command import AsJson, make_group, open_console, print_json, print_outcome
from elastane.cli.operators.tables import print_rows
from elastane.cli.options import argument, option
from elastane.cli.timestamps import format_minute
from elastane.cluster.client.context import connect
from elastane.cluster.nouns.notifications import (
    NewNotificationTarget,
    Notification,
    NotificationTarget,
    parse_occasions,
)
from elastane.common.errors import BadInput, RunFailed

if TYPE_CHECKING:
    from elastane.cluster.client.cluster import Cluster

TEST_S = 45.0
"""Longer than a service has to answer."""
POLL_S = 0.5
TargetArgument = Annotated[
    str, argument("TARGET", "Id of the target: ntf-..., as elastane notify list shows it.")
]


def add_target(
    url: Annotated[
        str, argument("URL", "Service in the form of apprise: slack://..., or - to read it from stdin.")
    ],
    *,
    team: Annotated[str, option("TEAM", "Team of the jobs; '*': every team, for operators.")],
    on: Annotated[
        str,
        option(
            "WHEN,...", "Occasions: failed, ended, reclaimed, stuck, stuck:1h, waits:2h, budget:80%.", "--on"
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Add a service that gets a message on the named occasions.

    URL is a secret: other users of this machine can read arguments, so write -
    and give it on stdin. No list, log or error shows it.
    """
    occasions = tuple(on.split(","))
    parse_occasions(occasions)
    read = sys.stdin.readline().strip() if url == "-" else url
    if not read:
        raise BadInput("no URL was given on stdin", do="elastane notify add ... - < file")
    with connect() as cluster:
        added = cluster.notifications.add(NewNotificationTarget(team=team, on=occasions, url=read))
    if as_json:
        print_json(added)
        return
    console = open_console()
    console.print(f"{added.id}: {_format_service(added)}, on {', '.join(added.on)}", markup=False)
    console.print(f"to try it: elastane notify test {added.id}", markup=False)


def show_targets(as_json: AsJson = False) -> None:
    """List the targets of your team, or of all teams for an operator, without their URLs."""
    with connect() as cluster:
        found = cluster.notifications.list()
    print_rows(
        found,
        {
            "target": lambda target: target.id,
            "team": lambda target: target.team,
            "service": _format_service,
            "on": lambda target: ", ".join(target.on),
            "waiting": lambda target: str(target.waiting or ""),
            "last sent": lambda target: format_minute(target.sent_s),
            "state": _format_state,
        },
        as_json=as_json,
        numbers=("waiting",),
    )


def remove_target(target: TargetArgument, as_json: AsJson = False) -> None:
    """Remove TARGET. Its messages that were not sent are dropped."""
    with connect() as cluster:
        cluster.notifications.remove(target)
    print_outcome({"removed": target}, f"{target} removed", as_json=as_json)


def send_test(target: TargetArgument, as_json: AsJson = False) -> None:
    """Send a test message to TARGET, and wait for the outcome."""
    with connect() as cluster:
        sent, why = _follow(cluster, target, cluster.notifications.test(target))
    if as_json:
        print_json(sent)
    elif sent.state == "sent":
        open_console().print(f"{target} has taken the test message ({sent.key})", markup=False)
    if why:
        raise RunFailed(
            f"{target} has not taken the test message: {why}",
            means="the controller tries again, with longer and longer pauses, for a day",
            do="check the service and its URL; to change the URL, remove the target and add it again",
        )


def _follow(cluster: "Cluster", target: str, made: Notification) -> tuple[Notification, str]:
    """Return a message after its first attempt, or as it is after `TEST_S`, and why it was not sent."""
    until_s = time.monotonic() + TEST_S
    while True:
        seen = next((one for one in cluster.notifications.newest(target) if one.id == made.id), made)
        if seen.state == "sent":
            return seen, ""
        # The request for a test has ended the pause after an earlier failure.
        found = next((one for one in cluster.notifications.list() if one.id == target), None)
        if seen.state == "given-up" or (found is not None and found.retry_at_s):
            return seen, found.why if found is not None and found.why else "it was given up"
        if time.monotonic() > until_s:
            return seen, "it was not sent yet"
        time.sleep(POLL_S)


def _format_service(target: NotificationTarget) -> str:
    return f"{target.service} at {target.host}" if target.host else target.service


def _format_state(target: NotificationTarget) -> str:
    lost = f"{target.left_out} left out" if target.left_out else ""
    failed = f"failed {target.failures} times: {target.why}" if target.failures else ""
    return "; ".join(filter(None, (failed, lost)))


notify = make_group(
    "notify",
    """
Send messages to Slack, Teams, e-mail, webhooks and other services.

A service is named by its URL in apprise, such as slack://TOKENS. A team-admin
can add services for the team's jobs; services at a host that the URL names,
such as mail servers and webhooks, can only be added by an operator.

  $ elastane notify add --team vision --on failed,waits:2h - < slack-url
""",
    {"add": add_target, "list": show_targets, "remove": remove_target, "test": send_test},
)
