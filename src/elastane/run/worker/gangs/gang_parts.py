"""The progress of a gang with its part of a checkpoint, from that of its processes."""

from collections.abc import Sequence

import msgspec

from elastane.run.nouns.control import CheckpointPart

PROBLEMS = ("abandoned", "failing")
PROGRESS = ("copied", "writing", "written")


def merge_parts(parts: Sequence[tuple[CheckpointPart, ...]]) -> tuple[CheckpointPart, ...]:
    """Return the reports of a gang about the last few checkpoints.

    A part is as far as the slowest process is, and it fails with that of any process.

    Args:
        parts: the reports of each process, that of process 0 first.
    """
    return tuple(_merge(report, parts[1:]) for report in parts[0])


def _merge(own: CheckpointPart, others: Sequence[tuple[CheckpointPart, ...]]) -> CheckpointPart:
    same = (own.name, own.attempt)
    found = [next((one for one in some if (one.name, one.attempt) == same), None) for some in others]
    reports = [own, *(report for report in found if report is not None)]
    for problem in PROBLEMS:
        for report in reports:
            if report.state == problem:
                return msgspec.structs.replace(own, state=report.state, error=report.error)
    # A process that has not reported has not even copied its part.
    slowest = min((report.state for report in reports), key=PROGRESS.index)
    return msgspec.structs.replace(
        own,
        state="copied" if None in found else slowest,
        bytes=sum(report.bytes for report in reports),
        copy_s=max(report.copy_s for report in reports),
        write_s=max(report.write_s for report in reports),
        cpu_s=sum(report.cpu_s for report in reports),
    )
