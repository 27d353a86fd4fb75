"""What a rehearsed restore came to; the rehearsing process says it as one line of JSON."""

import msgspec

from elastane.api.records import Digest


class RestoreRehearsal(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="rehearsed"):
    """A checkpoint, read back as a resumed run reads it.

    Args:
        workers: each read its part of the state into memory of its own, all at once.
        bytes: read by all of them; elements whose checksum had to match.
        seconds: until the last of them was done.
        digest: of the state restored.
    """

    workers: int
    bytes: int
    seconds: float
    digest: Digest
