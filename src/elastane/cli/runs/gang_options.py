"""The option ``--processes``, and what it cannot be combined with yet."""

from elastane.cli.options import spell_option
from elastane.cli.runs.run_options import RunOptions
from elastane.common.errors import BadInput
from elastane.run.nouns.process_count import POWER, REFUSED_SETTINGS, WHY_POWER, is_process_count

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
    """Return the number of processes of each worker.

    Raises:
        BadInput: it is not a power of two, or cannot be combined with another option.
    """
    processes = 1 if options.processes is None else options.processes
    if not is_process_count(processes):
        raise BadInput(f"invalid --processes: {processes}", means=WHY_POWER, do=f"use {POWER}")
    if processes == 1:
        return 1
    for name, why in REASONS.items():
        if getattr(options, name) not in (None, False, ALLOWED.get(name)):
            raise BadInput(
                f"{spell_option(name)} cannot be combined with --processes {processes}",
                means=why,
                do=f"omit it, or write {spell_option(name)} {ALLOWED[name]}"
                if name in ALLOWED
                else "omit it",
            )
    return processes
