"""Reading and writing ``life.json``."""

import os

import msgspec

from elastane.api.errors import BadInput
from elastane.api.foreign import Decoder, Malformed, read_bytes
from elastane.api.lives import Life
from elastane.api.rundir import RunDir

LARGEST_BYTES = 4 << 20
"""A traceback is in it."""
_decode = Decoder[Life](Life, at_most_bytes=LARGEST_BYTES)


def read_life(run_dir: RunDir) -> Life | None:
    """The newest life that has begun; None: none has.

    Raises:
        BadInput: the file is damaged.
        OSError: it cannot be read.
    """
    try:
        return _decode(read_bytes(run_dir.life, LARGEST_BYTES, follow_links=False))
    except FileNotFoundError:
        return None
    except Malformed as error:
        raise BadInput(
            f"{run_dir.life} is damaged: {error}", means="nobody knows how many lives the job has had"
        ) from error


def write_life(run_dir: RunDir, life: Life) -> None:
    """Replaces it in one move that outlasts a power cut: no number may be lived twice.

    Raises:
        OSError: it cannot be written.
    """
    beside = run_dir.life.with_name(f".{run_dir.life.name}.partial")
    with beside.open("wb") as file:
        file.write(msgspec.json.encode(life))
        file.flush()
        os.fsync(file.fileno())
    beside.replace(run_dir.life)
    directory = os.open(run_dir.root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
