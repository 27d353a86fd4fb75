"""The most workers that a run can have: each one has a connection to every other one.

A connection takes a file descriptor in each of its two processes, so the limit of descriptors of a process
(``ulimit -n``) limits the workers. The coordinator needs no more: a connection to each worker and agent.
"""

from elastane.common.connections.patient_listener import read_descriptor_limit
from elastane.common.connections.unproven_connections import AdmissionRules
from elastane.common.errors import BadInput

OWN_DESCRIPTORS = 96
"""What a worker opens besides its connections: its memory, logs, checkpoints and the files of the script."""


def compute_most_workers(descriptors: int) -> int:
    """Return the most workers of a run if each process may have this many descriptors; at least 1.

    What `AdmissionRules` keeps for connections that are not proven yet, and free, is not theirs.
    """
    rules = AdmissionRules.from_descriptor_limit(descriptors)
    return max(1, rules.descriptor_ceiling - rules.most - OWN_DESCRIPTORS)


def check_worker_limit(workers: int) -> None:
    """Check that this machine lets each process have enough descriptors for this many workers."""
    descriptors = read_descriptor_limit()
    most = compute_most_workers(descriptors)
    if workers > most:
        raise BadInput(
            f"the run may have {workers} workers, but this machine has descriptors for {most}",
            means=f"each worker has a connection to every other one, and a process may open {descriptors} "
            "files and connections here",
            do=f"raise the limit, for example to twice the workers: ulimit -n {max(2 * workers, 1024)}; "
            f"or start the run with --workers MIN:{most}",
        )
