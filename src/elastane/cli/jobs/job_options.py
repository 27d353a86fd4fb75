"""The options of ``elastane submit``."""

from typing import Annotated

from elastane.cli.options import AFTER, LIMITS, NAMES, RESUME, TRAINING, WORKERS, flag, option
from elastane.cli.train_options import WORKERS_HELP, TrainOptions


class JobOptions(TrainOptions, frozen=True, kw_only=True):
    """Options as typed; None: not typed, so the job file or the default decides."""

    workers: Annotated[str | None, option("MIN:MAX", f"{WORKERS_HELP} Default: 1.", panel=WORKERS)] = None
    from_: Annotated[
        str | None,
        option(
            "URL[@STEP]",
            "Begin from a checkpoint of another run, at a URL or in a directory: the newest one, or the one "
            "after STEP.",
            "--from",
            panel=RESUME,
        ),
    ] = None
    name: Annotated[
        str | None, option("NAME", "Name of the job, unique in the cluster. Default: generated.", panel=NAMES)
    ] = None
    team: Annotated[
        str | None,
        option(
            "TEAM",
            "Team that owns the job and provides its quota. Default: the team of your token.",
            panel=NAMES,
        ),
    ] = None
    queue: Annotated[
        str | None, option("QUEUE", "Label for lists of jobs; the scheduler ignores it.", panel=NAMES)
    ] = None
    priority: Annotated[
        str | None,
        option(
            "CLASS", "Priority class, such as high. Default: the default class of the cluster.", panel=NAMES
        ),
    ] = None
    devices: Annotated[
        int | None,
        option("N", "Devices of each worker. Default: one for each of its processes.", panel=WORKERS),
    ] = None
    kind: Annotated[
        list[str] | None,
        option(
            "KIND",
            "Kind of device that the job can use; repeat the option, best kind first. Default: any.",
            panel=WORKERS,
        ),
    ] = None
    image: Annotated[
        str | None,
        option(
            "IMAGE",
            "Container image of the agents, with elastane and torch. Default: that of the pool.",
            panel=WORKERS,
        ),
    ] = None
    spot: Annotated[
        bool | None,
        flag(
            "Whether to use spot devices, which can be taken away. Default: no.",
            "--spot/--no-spot",
            panel=WORKERS,
        ),
    ] = None
    borrow: Annotated[
        bool | None,
        flag(
            "Whether to use idle quota of other teams. Default: yes.", "--borrow/--no-borrow", panel=WORKERS
        ),
    ] = None
    deadline: Annotated[
        str | None,
        option(
            "WHEN",
            "Time by which the job should be done: a duration from now (+8h), or a time.",
            panel=LIMITS,
        ),
    ] = None
    budget: Annotated[float | None, option("COST", "The most that the job may cost.", panel=LIMITS)] = None
    retries: Annotated[int | None, option("N", "Most restarts after crashes. Default: 3.", panel=LIMITS)] = (
        None
    )
    env: Annotated[
        list[str] | None,
        option(
            "K[=V]",
            "Environment variable of the job; without a value, the one of this terminal. Repeatable.",
            panel=TRAINING,
        ),
    ] = None
    wait: Annotated[bool, flag("Follow the job until it has ended.", "--wait", panel=AFTER)] = False
    dry_run: Annotated[
        bool, flag("Print the job as YAML and submit nothing.", "--dry-run", "-n", panel=AFTER)
    ] = False
