"""The number of processes of a worker, and the settings that a worker of several ones refuses."""

MOST_PROCESSES = 64
POWER = f"1, 2, 4 or another power of two up to {MOST_PROCESSES}"
WHY_POWER = (
    "the processes of a worker compute neighbouring microbatches: gradients are added in the order of a "
    "binary tree"
)
REFUSED_SETTINGS = {
    "copies": ("all", "the optimizer state of a worker is divided among its processes already"),
    "convergence": ("exact", "sums inside a worker are in the order of the fixed tree"),
}
"""The only value that such a setting may have, and the reason."""


def is_process_count(processes: int) -> bool:
    """Return whether a worker may have this number of processes."""
    return 1 <= processes <= MOST_PROCESSES and not processes & (processes - 1)
