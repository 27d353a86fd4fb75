"""``elastane jobs``: the jobs of the cluster."""

import time
from typing import Annotated, cast, get_args

from elastane.cli.command import AsJson, open_console, print_json
from elastane.cli.options import flag, option
from elastane.cluster.client.context import connect
from elastane.cluster.nouns.job_records import State
from elastane.common.errors import BadInput

ALIVE: tuple[State, ...] = ("queued", "running", "paused")

Team = Annotated[str, option("TEAM", "Only jobs of this team.")]
Queue = Annotated[str, option("QUEUE", "Only jobs in this queue.")]


def jobs(
    *,
    all_: Annotated[bool, flag("Also list jobs that have ended.", "--all", "-a")] = False,
    state: Annotated[list[str] | None, option("STATE", "Only jobs in this state; repeatable.")] = None,
    team: Team = "",
    user: Annotated[str, option("USER", "Only jobs of this user.")] = "",
    queue: Queue = "",
    prefix: Annotated[str, option("TEXT", "Only jobs with a name that begins with this text.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the jobs of the cluster that you may see, newest first.

    The column "workers" shows how many workers a job has, and its minimum and
    maximum: 2 of 1:4. A queued job waits for its minimum; elastane explain JOB
    shows why.

    With --json, one object per line.
    """
    states = parse_states(state or []) or (() if all_ else ALIVE)
    with connect() as cluster:
        found = cluster.jobs.list(team=team, states=states, user=user, queue=queue, prefix=prefix)
        if as_json:
            for job in found:
                print_json(job)
            return
        rows = list(found)
    console = open_console()
    if not rows:
        more = "" if all_ or state else "; elastane jobs --all also lists jobs that have ended"
        console.print(f"no jobs{more}")
        return
    from elastane.cli.jobs.job_display import build_jobs_table
    from elastane.cli.tables import print_wide

    print_wide(console, build_jobs_table(rows, time.time()))


def parse_states(words: list[str]) -> tuple[State, ...]:
    known = get_args(State)
    for word in words:
        if word not in known:
            raise BadInput(f"invalid --state: {word!r}", do=f"write one of {', '.join(known)}")
    return tuple(cast(State, word) for word in words)
