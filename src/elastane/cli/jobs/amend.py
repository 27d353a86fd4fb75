"""``elastane amend``: change the priority or the bounds of a job."""

import math
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, TypeVar

import msgspec

from elastane.cli.command import AsJson, JobName, open_console, print_json
from elastane.cli.jobs.submission import warn_late
from elastane.cli.option_values import read_future_time
from elastane.cli.options import expand_options, option
from elastane.cluster.client.context import connect
from elastane.cluster.nouns.rest import Bounds, Job
from elastane.cluster.scheduler.wording import format_money
from elastane.common.errors import BadInput

T = TypeVar("T")
NONE = "none"


class AmendOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``elastane amend`` as typed; None: not typed."""

    priority: Annotated[
        str | None, option("CLASS", "New priority class, one of those that elastane priority list shows.")
    ] = None
    budget: Annotated[str | None, option("COST", "The most that the job may cost.")] = None
    deadline: Annotated[
        str | None,
        option("WHEN", "Time by which the job should be done: a duration from now (+8h), or a time."),
    ] = None
    loss: Annotated[str | None, option("LOSS", "The job finishes when it reaches this loss.")] = None
    by: Annotated[
        str | None,
        option("WHEN", "Time by which the job should reach that loss: a duration from now (+8h), or a time."),
    ] = None
    throughput: Annotated[
        str | None, option("N", "The job does not grow beyond this many samples per second.")
    ] = None


@expand_options
def amend(job: JobName, *, options: AmendOptions, as_json: AsJson = False) -> None:
    """Change the priority, budget, deadline or target of JOB.

    The next plan follows the change. Options that are not given stay unchanged;
    "none" removes a budget, deadline or target. --loss none also removes --by.

      $ elastane amend digits --priority high
      $ elastane amend digits --deadline +8h --throughput none

    With --json, the job.
    """
    bounds, priority = _read_bounds(options), options.priority
    if bounds == Bounds():
        raise BadInput("no change was given", do="elastane amend JOB --priority CLASS, or see --help")
    with connect() as cluster:
        if priority is not None and bounds == Bounds(priority_class=priority):
            found = cluster.jobs.set_priority(job, priority)
        else:
            # One request, so that either all changes are made or none.
            found = cluster.jobs.set_bounds(job, bounds)
    if as_json:
        print_json(found)
        return
    now = datetime.now().astimezone()
    named = f"priority {found.priority_class}, " if priority is not None else ""
    open_console().print(f"{job}: {named}{format_bounds(found, now)}", markup=False)
    if note := warn_late(found.spec.deadline, now):
        open_console().print(f"note: {note}", markup=False)


def _read_bounds(options: AmendOptions) -> Bounds:
    # --by belongs to the loss.
    by = NONE if options.loss == NONE and options.by is None else options.by
    return Bounds(
        budget=_read_value("--budget", options.budget, _parse_number),
        deadline=_read_value("--deadline", options.deadline, _parse_time("--deadline")),
        loss=_read_value("--loss", options.loss, _parse_number),
        by=_read_value("--by", by, _parse_time("--by")),
        throughput=_read_value("--throughput", options.throughput, _parse_number),
        priority_class=msgspec.UNSET if options.priority is None else options.priority,
    )


def format_bounds(job: Job, now: datetime) -> str:
    """Return the bounds of a job as text."""
    spec = job.spec
    target, spent = spec.target, format_money(job.compute_spent(now.timestamp()))
    found = [
        f"a budget of {spec.budget:g} ({spent} spent)" if spec.budget is not None else "",
        f"a deadline of {_format_minute(spec.deadline)}" if spec.deadline is not None else "",
        f"a target loss of {target.loss:g}" if target.loss is not None else "",
        f"to be reached by {_format_minute(target.by)}" if target.by is not None else "",
        f"a target of {target.throughput:g} samples/s" if target.throughput is not None else "",
    ]
    return ", ".join(filter(None, found)) or "no bounds"


def _format_minute(time: datetime) -> str:
    return f"{time.astimezone():%Y-%m-%d %H:%M}"


def _read_value(option: str, text: str | None, read: Callable[[str], T]) -> T | msgspec.UnsetType | None:
    """Return the value of an option: ``UNSET`` without a text, None for ``none``."""
    if text is None:
        return msgspec.UNSET
    if text == NONE:
        return None
    try:
        return read(text)
    except ValueError:
        raise BadInput(f"invalid number for {option}: {text!r}", do=f'write a number, or "{NONE}"') from None


def _parse_number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _parse_time(option: str) -> Callable[[str], datetime]:
    return lambda text: read_future_time(option, text, datetime.now().astimezone())
