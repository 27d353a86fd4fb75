"""The result of a rehearsed restore, which the rehearsing process prints as one line of JSON."""

import msgspec

from elastane.run.nouns.records import Digest


class RestoreRehearsal(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="rehearsed"):
    """A checkpoint that was read back as a resumed run reads it.

    Args:
        workers: how many read their parts of the state at the same time, each into its own memory.
        bytes: bytes that all of them read and compared with the checksums.
        seconds: time until the last of them had finished.
        digest: digest of the restored state.
    """

    workers: int
    bytes: int
    seconds: float
    digest: Digest
