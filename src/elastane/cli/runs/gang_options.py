"""The option ``--processes``, and what it cannot be combined with yet."""

from elastane.cli.options import spell_option
from elastane.cli.runs.run_options import RunOptions
from elastane.common.errors import BadInput
from elastane.run.nouns.process_count import POWER, REFUSED_SETTINGS, WHY_POWER, is_process_count
from elastane.run.nouns.spec import RunSpec

REASONS = {
    **{name: why for name, (_, why) in REFUSED_SETTINGS.items()},
    "listen": "all processes of a run with --processes are on one machine so far",
    "hosts": "all processes of a run with --processes are on one machine so far",
    "transport": "workers of several processes read each other's memory",
    "spot_checks": "one process of a worker cannot compute a microbatch once more by itself",
    "save_optimizer": "no process has the whole optimizer state",
    "debug": "a terminal belongs to one process",
}
"""Options that a run with workers of several processes refuses, with the reason."""
ALLOWED = {
    **{name: value for name, (value, _) in REFUSED_SETTINGS.items()},
    "transport": "shared",
    "spot_checks": "off",
}


def read_processes(options: RunOptions) -> int:
    """Return the number of processes of each worker of a new run.

    Raises:
        BadInput: it is not a power of two, or cannot be combined with another option.
    """
    processes = 1 if options.processes is None else options.processes
    _check_number(processes)
    if processes > 1 and (name := _find_refused(options)):
        raise BadInput(
            f"{spell_option(name)} cannot be combined with --processes {processes}",
            means=REASONS[name],
            do=f"omit it, or write {spell_option(name)} {ALLOWED[name]}" if name in ALLOWED else "omit it",
        )
    return processes


def check_changed_processes(spec: RunSpec, before: int) -> None:
    """Check that a run can go on with another number of processes per worker.

    Args:
        before: the number so far.

    Raises:
        BadInput: it is not a power of two, or a setting of the run is refused with it.
    """
    processes = spec.processes
    if processes == before:
        return
    if spec.contract is not None:
        raise BadInput(
            "--resume cannot be combined with --processes: the run has an unmodified script",
            means="its script was started with --nproc-per-node, and has snapshots of its own",
            do="omit --processes",
        )
    _check_number(processes)
    if processes > 1 and (name := _find_refused(spec)):
        raise BadInput(
            f"the run has {spell_option(name)}, which cannot be combined with --processes {processes}",
            means=REASONS[name],
            do="omit --processes; or train on in a new run: elastane run --from RUN --processes "
            f"{processes} SCRIPT",
        )


def _check_number(processes: int) -> None:
    if not is_process_count(processes):
        raise BadInput(f"invalid --processes: {processes}", means=WHY_POWER, do=f"use {POWER}")


def _find_refused(settings: RunOptions | RunSpec) -> str | None:
    """Return the name of a setting that a worker of several processes refuses; None: it refuses none."""
    # Spot checks are made where they are possible: a worker of several processes makes none.
    unset = (None, False, "", (), "auto")
    return next(
        (name for name in REASONS if getattr(settings, name) not in (*unset, ALLOWED.get(name))), None
    )
