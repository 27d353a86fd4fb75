"""Reading and writing ``attempt.json``."""

import msgspec

from elastane.common.atomic_file import replace_file
from elastane.common.errors import BadInput
from elastane.common.untrusted_data import Decoder, Malformed
from elastane.run.nouns.attempts import Attempt
from elastane.run.nouns.rundir import RunDir

LARGEST_ATTEMPT_BYTES = 4 << 20
"""The size limit of the file, which may contain a traceback."""
_decode = Decoder[Attempt](Attempt, at_most_bytes=LARGEST_ATTEMPT_BYTES)


def read_attempt(run_dir: RunDir) -> Attempt | None:
    """Return the newest attempt that has begun; None: none has.

    Raises:
        BadInput: the file is damaged.
        OSError: it cannot be read.
    """
    try:
        return _decode(run_dir.files.read(run_dir.attempt, LARGEST_ATTEMPT_BYTES))
    except FileNotFoundError:
        return None
    except Malformed as error:
        raise BadInput(
            f"{run_dir.attempt} is damaged: {error}",
            means="the number of attempts that the job has had is unknown",
        ) from error


def write_attempt(run_dir: RunDir, attempt: Attempt) -> None:
    """Replace the file atomically and durably: no number may be used twice, even after a power cut.

    Raises:
        OSError: it cannot be written.
    """
    replace_file(run_dir.attempt, msgspec.json.encode(attempt), durable=True)
