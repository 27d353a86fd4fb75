"""``elastane scale``: change the limits of the size of a job."""

import re
from typing import Annotated

from elastane.cli.command import AsJson, JobName, print_outcome
from elastane.cli.jobs.submission import format_limits
from elastane.cli.options import argument, option
from elastane.cluster.client.context import connect
from elastane.common.errors import BadInput


def scale(
    job: JobName,
    workers: Annotated[
        str | None, argument("MIN:MAX", "Fewest and most workers; a single number sets both.")
    ] = None,
    *,
    least: Annotated[int | None, option("N", "Fewest workers; the maximum stays unchanged.", "--min")] = None,
    most: Annotated[int | None, option("N", "Most workers; the minimum stays unchanged.", "--max")] = None,
    sizes: Annotated[str | None, option("N,N,...", "Only these numbers of workers.", "--sizes")] = None,
    as_json: AsJson = False,
) -> None:
    """Change the numbers of workers that JOB may have.

    The cluster resizes the job as soon as it can, while the job trains. The
    trained bytes do not depend on its size. An unmodified script restarts at each
    new size. If the job has a list of sizes, MIN:MAX keeps the sizes within these
    limits; --sizes sets a new list.

      $ elastane scale digits 2:8
      $ elastane scale digits --max 4
      $ elastane scale digits --sizes 2,4,8

    With --json, the job.
    """
    low, high, values = None, None, None
    if sizes is None:
        low, high = parse_limits(workers, least, most)
    elif (workers, least, most) == (None, None, None):
        values = parse_sizes(sizes)
    else:
        raise BadInput(
            "--sizes cannot be combined with other limits",
            do="give only --sizes; its smallest and largest numbers are the limits",
        )
    with connect() as cluster:
        found = cluster.jobs.scale(job, min_replicas=low, max_replicas=high, replica_discrete_values=values)
    has = f"; it has {found.workers} now" if found.state == "running" else ""
    words = f"{job} may have {format_limits(found.min_workers, found.max_workers)}{has}"
    print_outcome(found, words, as_json=as_json)


def parse_limits(workers: str | None, least: int | None, most: int | None) -> tuple[int | None, int | None]:
    """Return the fewest and most workers; None: as before."""
    if workers is None:
        if least is None and most is None:
            raise BadInput(
                "no size was given", do="elastane scale JOB MIN:MAX, or --min N, --max N, or --sizes N,N,..."
            )
        return least, most
    if least is not None or most is not None:
        raise BadInput(
            f"MIN:MAX ({workers}) cannot be combined with --min or --max", do="give one or the other"
        )
    match = re.fullmatch(r"(\d+)(?::(\d+))?", workers.strip())
    if match is None:
        raise BadInput(f"invalid number of workers: {workers!r} is not MIN:MAX", do="write for example 1:8")
    return int(match[1]), int(match[2] or match[1])


def parse_sizes(text: str) -> tuple[int, ...]:
    """Return the numbers of workers of a text such as ``2,4,8``, ascending."""
    try:
        return tuple(sorted({int(size) for size in text.split(",")}))
    except ValueError:
        raise BadInput(
            f"invalid --sizes: {text!r} is not a list of numbers", do="write for example 2,4,8"
        ) from None
